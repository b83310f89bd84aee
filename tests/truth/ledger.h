/* What the endpoint knows of itself: every request, every send, and the pages that tell of it. */
#ifndef LEDGER_H
#define LEDGER_H

#include "wire.h"

#include <sys/socket.h>
#include <sys/types.h>

/* The file is: two int64 counts, then these rows, then those. `tests/truth/recorded.py` reads it. */
typedef struct {
    int64_t received_ns, done_ns;
    uint32_t connection, port, prompt_tokens, tokens;
    char head[HEAD_BYTES];
} Row;
typedef struct {
    int64_t ns;
    uint32_t request, tokens, events, unused;
} Send;

static Knobs knobs = {
    .ttft_ms = 50, .itl_ms = 10, .tokens = 64, .per_event = 1, .core = -1, .model = "truth"};
static Row *rows;
static Send *sends;
static size_t row_count, row_room, send_count, send_room;
static uint64_t prompt_total, token_total, finished, running;
static double ttft_sum;

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* As recv, with the time at which the last packet of it had come, on our clock. */
static ssize_t receive(int fd, void *to, size_t room, int64_t *came_ns) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(struct timespec))];
    } control;
    struct iovec part = {to, room};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control,
                             .msg_controllen = sizeof control};
    ssize_t got = recvmsg(fd, &message, 0);
    struct cmsghdr *told = got > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (got <= 0) return got;
    struct timespec wall, came;
    clock_gettime(CLOCK_REALTIME, &wall);
    *came_ns = now_ns();
    if (!told || told->cmsg_type != SCM_TIMESTAMPNS) return got;
    memcpy(&came, CMSG_DATA(told), sizeof came);
    *came_ns -= (wall.tv_sec - came.tv_sec) * 1000000000LL + wall.tv_nsec - came.tv_nsec;
    return got;
}

static void *more(void *array, size_t count, size_t *room, size_t size) {
    if (count < *room) return array;
    *room = *room ? *room * 2 : 4096;
    if (!(array = realloc(array, *room * size))) { perror("truth"); exit(1); }
    return array;
}

static void put(FILE *file, const void *data, size_t size, size_t count) {
    if (fwrite(data, size, count, file) != count) { perror("truth"); exit(1); }
}

static void write_truth(const char *name) {
    FILE *file = fopen(name, "wb");
    if (!file) { perror(name); exit(1); }
    int64_t counts[2] = {(int64_t)row_count, (int64_t)send_count};
    put(file, counts, sizeof *counts, 2);
    put(file, rows, sizeof *rows, row_count);
    put(file, sends, sizeof *sends, send_count);
    if (fclose(file)) { perror(name); exit(1); }
}

static size_t metrics_page(char *to) {
    char page[4096];
    unsigned long long done = finished, made = token_total, asked = prompt_total, begun = row_count, now = running;
    sprintf(page,
            "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine=\"0\"} %llu\n"
            "# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{engine=\"0\"} 0\n"
            "# TYPE vllm:prompt_tokens_total counter\nvllm:prompt_tokens_total{engine=\"0\"} %llu\n"
            "# TYPE vllm:generation_tokens_total counter\nvllm:generation_tokens_total{engine=\"0\"} %llu\n"
            "# TYPE vllm:prefix_cache_queries_total counter\nvllm:prefix_cache_queries_total{engine=\"0\"} %llu\n"
            "# TYPE vllm:prefix_cache_hits_total counter\nvllm:prefix_cache_hits_total{engine=\"0\"} 0\n"
            "# TYPE vllm:request_success_total counter\n"
            "vllm:request_success_total{engine=\"0\",finished_reason=\"length\"} %llu\n"
            "# TYPE vllm:time_to_first_token_seconds histogram\n"
            "vllm:time_to_first_token_seconds_bucket{engine=\"0\",le=\"+Inf\"} %llu\n"
            "vllm:time_to_first_token_seconds_count{engine=\"0\"} %llu\n"
            "vllm:time_to_first_token_seconds_sum{engine=\"0\"} %.9f\n"
            "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds %lld\n",
            now, asked, made, asked, done, begun, begun, ttft_sum, created);
    return whole(to, "200 OK", "text/plain; version=1.0.0; charset=utf-8", page);
}

static size_t page(const Request *request, char *to) {
    char body[512];
    if (path_is(request, "/metrics")) return metrics_page(to);
    if (path_is(request, "/health")) return whole(to, "200 OK", "text/plain", "");
    if (path_is(request, "/version")) return whole(to, "200 OK", "application/json", "{\"version\":\"0.32.0\"}");
    if (!path_is(request, "/v1/models"))
        return whole(to, "404 Not Found", "application/json", "{\"detail\":\"Not Found\"}");
    snprintf(body, sizeof body, "{\"object\":\"list\",\"data\":[{\"id\":\"%s\",\"object\":\"model\",\"created\":%lld,"
             "\"owned_by\":\"vllm\",\"root\":\"%s\",\"parent\":null,\"max_model_len\":131072}]}",
             knobs.model, created, knobs.model);
    return whole(to, "200 OK", "application/json", body);
}
#endif
