/* What stands on the wire: vLLM 0.32's streams as it writes them, and the words of a request
 * that an answer depends on. */
#ifndef WIRE_H
#define WIRE_H

#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

enum { HEAD_BYTES = 64, ID_DIGITS = 16, ROOM = 1 << 17, FULL = 1 << 16 };

typedef struct {
    double ttft_ms, itl_ms;
    unsigned tokens, per_event;
    int port, core;
    const char *model, *truth;
} Knobs;

#define TEXT " word"

/* One of the two kinds of streams; the ids of `opening` and `middle` are filled in. */
typedef struct {
    const char *prefix, *object, *open, *close;
    char opening[512], middle[1 << 14];
    size_t opening_bytes, middle_bytes, id_at;
} Api;

typedef struct {
    const char *path, *body;
    size_t path_bytes, body_bytes, bytes;
    int is_post;
} Request;

static Api apis[2] = {
    {"cmpl-", "text_completion", "\"text\":\"", "\",", "", "", 0, 0, 0},
    {"chatcmpl-", "chat.completion.chunk", "\"delta\":{\"content\":\"", "\"},", "", "", 0, 0, 0},
};
static char stream_head[512];
static size_t stream_head_bytes;
static long long created;

static size_t hex(char *to, uint64_t number) {
    for (int at = ID_DIGITS - 1; at >= 0; at--, number >>= 4) to[at] = "0123456789abcdef"[number & 15];
    return ID_DIGITS;
}

static size_t chunk(char *to, const char *data, size_t bytes) {
    size_t at = (size_t)sprintf(to, "%zx\r\n", bytes);
    memcpy(to + at, data, bytes);
    memcpy(to + at + bytes, "\r\n", 2);
    return at + bytes + 2;
}

static size_t opening(char *to, const Api *api, uint64_t number) {
    memcpy(to, api->opening, api->opening_bytes);
    hex(to + strlen("data: {\"id\":\"") + strlen(api->prefix), number);
    return api->opening_bytes;
}

/* One event of `tokens` tokens, in a chunk of its own. */
static size_t event(char *to, const Api *api, uint64_t number, unsigned tokens, int last) {
    static char data[1 << 14];
    int is_chat = api == &apis[1];
    size_t at = opening(data, api, number);
    at += (size_t)sprintf(data + at, "{\"index\":0,%s", api->open);
    for (unsigned i = 0; i < tokens; i++, at += strlen(TEXT)) memcpy(data + at, TEXT, strlen(TEXT));
    at += (size_t)sprintf(data + at, "%s\"logprobs\":null,\"finish_reason\":%s", api->close,
                          last ? "\"length\"" : "null");
    at += (size_t)sprintf(data + at, "%s%s\"token_ids\":null}]}\n\n",
                          last || !is_chat ? ",\"stop_reason\":null," : ",",
                          is_chat ? "" : "\"prompt_token_ids\":null,");
    return chunk(to, data, at);
}

static size_t middle_event(char *to, const Api *api, uint64_t number) {
    memcpy(to, api->middle, api->middle_bytes);
    hex(to + api->id_at, number);
    return api->middle_bytes;
}

/* A chat's first chunk, which has no token. */
static size_t role_event(char *to, const Api *api, uint64_t number) {
    char data[1 << 10];
    size_t at = opening(data, api, number);
    at += (size_t)sprintf(data + at, "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
                          "\"logprobs\":null,\"finish_reason\":null}],\"prompt_token_ids\":null,"
                          "\"prompt_text\":null}\n\n");
    return chunk(to, data, at);
}

static size_t ending(char *to, const Api *api, uint64_t number, unsigned prompt, unsigned tokens) {
    char data[1 << 10];
    size_t at = opening(data, api, number);
    at += (size_t)sprintf(data + at, "],\"usage\":{\"prompt_tokens\":%u,\"total_tokens\":%u,"
                          "\"completion_tokens\":%u},\"system_fingerprint\":\"vllm-0.32.0-truth\"}\n\n",
                          prompt, prompt + tokens, tokens);
    at = chunk(to, data, at);
    return at + (size_t)sprintf(to + at, "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n");
}

static size_t whole(char *to, const char *status, const char *type, const char *body) {
    return (size_t)sprintf(to, "HTTP/1.1 %s\r\nserver: uvicorn\r\ncontent-length: %zu\r\ncontent-type: %s\r\n\r\n%s",
                           status, strlen(body), type, body);
}

static void prepare(const Knobs *knobs) {
    char date[64];
    created = (long long)time(NULL);
    time_t now = (time_t)created;
    strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", gmtime(&now));
    stream_head_bytes = (size_t)sprintf(stream_head, "HTTP/1.1 200 OK\r\ndate: %s\r\nserver: uvicorn\r\ncontent-type: text/event-stream; "
            "charset=utf-8\r\nvary: Origin\r\ntransfer-encoding: chunked\r\n\r\n", date);
    for (Api *api = apis; api < apis + 2; api++) {
        api->opening_bytes = (size_t)sprintf(
            api->opening, "data: {\"id\":\"%s%016d\",\"object\":\"%s\",\"created\":%lld,"
            "\"model\":\"%s\",\"choices\":[", api->prefix, 0, api->object, created, knobs->model);
        api->middle_bytes = event(api->middle, api, 0, knobs->per_event, 0);
        api->id_at = (size_t)(strstr(api->middle, api->prefix) - api->middle) + strlen(api->prefix);
    }
}

/* Gives 1 for a whole request, 0 for too few bytes yet, -1 for what is no request. */
static int parse(const char *data, size_t bytes, Request *found) {
    const char *end = memmem(data, bytes, "\r\n\r\n", 4);
    if (!end) return bytes > 1 << 16 ? -1 : 0;
    const char *space = memchr(data, ' ', (size_t)(end - data));
    const char *after = space ? memchr(space + 1, ' ', (size_t)(end - space)) : NULL;
    if (!after) return -1;
    size_t length = 0;
    for (const char *line = data; (line = memchr(line, '\n', (size_t)(end - line))); )
        if (!strncasecmp(++line, "content-length:", 15)) length = strtoul(line + 15, NULL, 10);
    *found = (Request){space + 1, end + 4, (size_t)(after - space - 1), length,
                       (size_t)(end + 4 - data) + length, !memcmp(data, "POST", 4)};
    return found->bytes <= bytes;
}

static int path_is(const Request *request, const char *path) {
    return request->path_bytes == strlen(path) && !memcmp(request->path, path, request->path_bytes);
}

/* Where the value of a member begins; members of nested objects count as well. */
static const char *member(const Request *request, const char *name) {
    const char *found = memmem(request->body, request->body_bytes, name, strlen(name));
    if (!found) return NULL;
    for (found += strlen(name); *found == ' ' || *found == ':'; found++) {}
    return found;
}

static unsigned number_or(const char *value, unsigned otherwise) {
    return value ? (unsigned)strtoul(value, NULL, 10) : otherwise;
}

/* Exact for a list of token ids; text counts as one token for every four bytes. */
static unsigned prompt_length(const char *value, const char *end) {
    unsigned commas = 0;
    if (!value) return 0;
    if (*value != '[') return (unsigned)(end - value) / 4 + 1;
    for (; value < end && *value != ']'; value++) commas += *value == ',';
    return commas + 1;
}
#endif
