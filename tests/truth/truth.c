/* A streaming endpoint that knows its own truth: when it had each whole request, and when it wrote
 * each token. One thread, epoll, HTTP/1.1; all times are CLOCK_MONOTONIC, Python's perf_counter.
 *
 * A token's time is read just before the send that carries it: nobody can have had it earlier, so
 * a claim below it is false, and the way through the kernel counts as the client's error. A
 * request's time is the kernel's, of its last packet: what we are late counts as the endpoint's. */
#include "ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BURST = 8, EVENTS = 64, LONGEST_WAIT_NS = 50 * 1000 * 1000 };

typedef struct Conn {
    int fd, is_busy, is_blocked, is_gone, is_queued;
    uint32_t connection, port;
    char *in, *out;
    size_t in_bytes, in_room, out_bytes;
    const Api *api;
    uint32_t request, left;
    int64_t received, due;
    struct Conn *next;
} Conn;
typedef struct {
    Conn *first, *last;
} Queue;

static int64_t ttft_ns, itl_ns;
static Queue to_begin, to_go_on; /* each has one delay for all, so each is in order */
static volatile sig_atomic_t is_over;
static char scratch[ROOM];
static int poller;

static void enqueue(Queue *queue, Conn *c, int64_t due) {
    c->due = queue->first && queue->last->due > due ? queue->last->due : due;
    c->next = NULL;
    c->is_queued = 1;
    if (queue->first) queue->last->next = c; else queue->first = c;
    queue->last = c;
}

static Queue *soonest(void) {
    if (!to_begin.first || !to_go_on.first) return to_begin.first ? &to_begin : to_go_on.first ? &to_go_on : NULL;
    return to_begin.first->due <= to_go_on.first->due ? &to_begin : &to_go_on;
}

static void drop(Conn *c) {
    if (!c->is_gone) {
        close(c->fd);
        running -= (uint64_t)c->is_busy;
    }
    c->is_gone = 1;
    if (c->is_queued) return; /* freed when its turn comes */
    free(c->in);
    free(c->out);
    free(c);
}

/* Gives 0 when the rest must wait until the client has read. */
static int post(Conn *c, const char *data, size_t bytes) {
    ssize_t sent = send(c->fd, data, bytes, MSG_NOSIGNAL);
    if (sent < 0) sent = 0; /* a client that is gone is seen by epoll */
    if ((size_t)sent == bytes) return 1;
    size_t rest = bytes - (size_t)sent;
    char *kept = malloc(rest);
    if (!kept) { perror("truth"); exit(1); }
    memcpy(kept, data + sent, rest);
    free(c->out);
    c->out = kept;
    c->out_bytes = rest;
    c->is_blocked = 1;
    return 0;
}

static void record_send(const Conn *c, unsigned events, unsigned tokens) {
    sends = more(sends, send_count, &send_room, sizeof *sends);
    int64_t ns = now_ns();
    if (c->left + tokens == rows[c->request].tokens) ttft_sum += (double)(ns - rows[c->request].received_ns) / 1e9;
    sends[send_count++] = (Send){ns, c->request, tokens, events, 0};
    rows[c->request].done_ns = c->left ? 0 : ns;
    token_total += tokens;
}

/* Write what is due: one event, or, where tokens take no time, all of them. */
static void push(Conn *c) {
    Row *row = &rows[c->request];
    while (c->left) {
        size_t bytes = 0;
        unsigned events = 0, before = c->left;
        if (c->left == row->tokens) {
            if (!ttft_ns) { memcpy(scratch, stream_head, stream_head_bytes); bytes = stream_head_bytes; }
            if (c->api == &apis[1]) bytes += role_event(scratch + bytes, c->api, c->request);
        }
        do {
            unsigned tokens = c->left < knobs.per_event ? c->left : knobs.per_event;
            c->left -= tokens;
            bytes += c->left ? middle_event(scratch + bytes, c->api, c->request)
                             : event(scratch + bytes, c->api, c->request, tokens, 1);
            events++;
        } while (!itl_ns && c->left && bytes < FULL);
        if (!c->left) bytes += ending(scratch + bytes, c->api, c->request, row->prompt_tokens, row->tokens);
        record_send(c, events, before - c->left);
        if (!post(c, scratch, bytes)) return;
        if (itl_ns && c->left) return enqueue(&to_go_on, c, c->due + itl_ns);
    }
    c->is_busy = 0;
    running--;
    finished++;
}

static void begin(Conn *c, const Request *request, const Api *api) {
    const char *prompt = member(request, api == apis ? "\"prompt\"" : "\"content\"");
    const char *end = request->body + request->body_bytes;
    const char *asked = member(request, "\"max_tokens\"");
    if (!asked) asked = member(request, "\"max_completion_tokens\"");
    rows = more(rows, row_count, &row_room, sizeof *rows);
    Row *row = &rows[row_count];
    *row = (Row){.received_ns = c->received, .connection = c->connection, .port = c->port,
                 .prompt_tokens = prompt_length(prompt, end), .tokens = number_or(asked, knobs.tokens)};
    if (!row->tokens) row->tokens = 1;
    if (prompt) memcpy(row->head, prompt, end - prompt < HEAD_BYTES ? (size_t)(end - prompt) : HEAD_BYTES);
    prompt_total += row->prompt_tokens;
    c->api = api;
    c->request = (uint32_t)row_count++;
    c->left = row->tokens;
    c->is_busy = 1;
    c->due = c->received;
    running++;
    if (!ttft_ns) return push(c);
    if (post(c, stream_head, stream_head_bytes)) enqueue(&to_begin, c, c->due + ttft_ns);
}

/* Answer what has come whole, one request after the other. */
static void answer(Conn *c) {
    Request request;
    int found = 0;
    while (!c->is_busy && !c->is_blocked && (found = parse(c->in, c->in_bytes, &request)) == 1) {
        if (request.is_post && path_is(&request, "/v1/completions")) begin(c, &request, &apis[0]);
        else if (request.is_post && path_is(&request, "/v1/chat/completions")) begin(c, &request, &apis[1]);
        else post(c, scratch, page(&request, scratch));
        c->in_bytes -= request.bytes;
        memmove(c->in, c->in + request.bytes, c->in_bytes);
    }
    if (found < 0) shutdown(c->fd, SHUT_RDWR);
}

/* Edge-triggered: what is not read now is not told again. Gives 0 when the client is gone. */
static int take_in(Conn *c) {
    for (;;) {
        if (c->in_room - c->in_bytes < 4097) c->in = more(c->in, c->in_room, &c->in_room, 1);
        if (c->in_room - c->in_bytes < 4097) continue;
        size_t room = c->in_room - c->in_bytes - 1;
        ssize_t got = receive(c->fd, c->in + c->in_bytes, room, &c->received);
        if (got == 0) return 0;
        if (got < 0) return errno == EAGAIN;
        c->in_bytes += (size_t)got;
        c->in[c->in_bytes] = 0;
        if ((size_t)got < room) return 1;
    }
}

static void flush(Conn *c) {
    size_t bytes = c->out_bytes;
    char *data = c->out;
    c->out = NULL;
    c->is_blocked = 0;
    int is_sent = post(c, data, bytes);
    free(data);
    if (!is_sent || !c->is_busy) return;
    if (c->left && itl_ns && c->left < rows[c->request].tokens) return enqueue(&to_go_on, c, c->due + itl_ns);
    if (c->left && ttft_ns && c->left == rows[c->request].tokens) return enqueue(&to_begin, c, c->due + ttft_ns);
    push(c);
}

static void attend(Conn *c, uint32_t what) {
    int is_here = !(what & (EPOLLERR | EPOLLHUP)) && (!(what & EPOLLIN) || take_in(c));
    if (!is_here) return drop(c);
    if (c->is_blocked && (what & EPOLLOUT)) flush(c);
    answer(c);
}

static void welcome(int listener) {
    static uint32_t count;
    struct sockaddr_in from;
    socklen_t size = sizeof from;
    int fd, one = 1, room = 1 << 20;
    while ((fd = accept4(listener, (struct sockaddr *)&from, &size, SOCK_NONBLOCK)) >= 0) {
        Conn *c = calloc(1, sizeof *c);
        if (!c) { perror("truth"); exit(1); }
        c->fd = fd;
        c->connection = count++;
        c->port = ntohs(from.sin_port);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
        setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one);
        struct epoll_event interest = {EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, {.ptr = c}};
        epoll_ctl(poller, EPOLL_CTL_ADD, fd, &interest);
    }
}

/* A few at a time, so that requests that come meanwhile are noticed in time. */
static int64_t send_due(void) {
    Queue *queue = NULL;
    for (int sent = 0; sent < BURST && (queue = soonest()); sent++) {
        Conn *c = queue->first;
        int64_t wait = c->due - now_ns();
        if (wait > 0) return wait < LONGEST_WAIT_NS ? wait : LONGEST_WAIT_NS;
        queue->first = c->next;
        c->is_queued = 0;
        if (c->is_gone) { drop(c); continue; }
        push(c);
        answer(c);
    }
    return queue ? 0 : LONGEST_WAIT_NS;
}

static void serve(int listener) {
    struct epoll_event events[EVENTS];
    while (!is_over) {
        struct timespec wait = {0, send_due()};
        int count = epoll_pwait2(poller, events, EVENTS, &wait, NULL);
        for (int i = 0; i < count; i++)
            if (events[i].data.ptr) attend(events[i].data.ptr, events[i].events); else welcome(listener);
    }
}

static int listening(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)knobs.port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof at;
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&at, size) || listen(fd, 4096)) { perror("truth"); exit(1); }
    getsockname(fd, (struct sockaddr *)&at, &size);
    poller = epoll_create1(0);
    struct epoll_event interest = {EPOLLIN, {.ptr = NULL}};
    epoll_ctl(poller, EPOLL_CTL_ADD, fd, &interest);
    printf("%d\n", ntohs(at.sin_port));
    fflush(stdout);
    return fd;
}

static void stop(int signal) {
    (void)signal;
    is_over = 1;
}

/* Every knob takes a value: --ttft-ms 50 --itl-ms 10 --tokens 64 ... */
static void read_knobs(int count, char **words) {
    for (int i = 1; i + 1 < count; i += 2) {
        const char *name = words[i], *value = words[i + 1];
        if (!strcmp(name, "--ttft-ms")) knobs.ttft_ms = atof(value);
        else if (!strcmp(name, "--itl-ms")) knobs.itl_ms = atof(value);
        else if (!strcmp(name, "--tokens")) knobs.tokens = (unsigned)atoi(value);
        else if (!strcmp(name, "--per-event")) knobs.per_event = (unsigned)atoi(value);
        else if (!strcmp(name, "--port")) knobs.port = atoi(value);
        else if (!strcmp(name, "--core")) knobs.core = atoi(value);
        else if (!strcmp(name, "--truth")) knobs.truth = value;
        else { fprintf(stderr, "truth: no knob %s\n", name); exit(2); }
    }
    if (knobs.per_event < 1 || knobs.per_event > 1000) { fprintf(stderr, "truth: --per-event is 1 to 1000\n"); exit(2); }
    ttft_ns = (int64_t)(knobs.ttft_ms * 1e6);
    itl_ns = (int64_t)(knobs.itl_ms * 1e6);
}

/* Wake within microseconds, with as many files as may be, and never longer than our parent. */
static void settle(void) {
    struct rlimit files;
    prctl(PR_SET_TIMERSLACK, 1);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    signal(SIGTERM, stop);
    signal(SIGINT, stop);
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    if (knobs.core < 0) return;
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(knobs.core, &cores);
    if (sched_setaffinity(0, sizeof cores, &cores)) { perror("truth"); exit(1); }
}

int main(int count, char **words) {
    read_knobs(count, words);
    settle();
    prepare(&knobs);
    serve(listening());
    if (knobs.truth) write_truth(knobs.truth);
    return 0;
}
