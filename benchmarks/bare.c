/* bare: what the kernel needs. Accept, read, write the same answer for each request, and nothing else.
 *
 *     bare port=N request=HEX answer=HEX [seconds=S]
 *
 * The listener waits for data (TCP_DEFER_ACCEPT), so a request is mostly there when its connection is accepted; the
 * answer is sent at once, and epoll hears only of what happens later.
 */
#define _GNU_SOURCE
#include "net.h"

static unsigned char answer[65536];
static size_t answer_bytes, request_bytes;
static int queue;

/* Answer what is there; return whether the connection goes on. */
static int serve(int fd) {
    unsigned char in[8192];
    ssize_t got = recv(fd, in, sizeof in, 0);
    if (got <= 0) return got < 0 && errno == EAGAIN;
    /* All requests are alike and come whole, as the load generator writes them: their length is their number. */
    size_t bytes = (size_t)got / request_bytes * answer_bytes;
    return send(fd, answer, bytes, MSG_NOSIGNAL) == (ssize_t)bytes;
}

static void accept_some(int listener) {
    for (int i = 0; i < 64; i++) {
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
        if (fd < 0) return;
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
        if (!serve(fd) || epoll_ctl(queue, EPOLL_CTL_ADD, fd, &event) < 0) close(fd);
    }
}

int main(int argc, char **argv) {
    (void)argc;
    unsigned char one[1024], request[1024];
    size_t one_bytes = from_hex(option(argv, "answer", ""), one, sizeof one);
    request_bytes = from_hex(option(argv, "request", ""), request, sizeof request);
    if (one_bytes == 0 || request_bytes == 0) return 2;
    for (answer_bytes = one_bytes; answer_bytes <= sizeof answer; answer_bytes += one_bytes)
        memcpy(answer + answer_bytes - one_bytes, one, one_bytes);
    answer_bytes = one_bytes;

    allow_descriptors();
    int listener = listen_on(INADDR_LOOPBACK, (int)number(argv, "port", 0)), seconds = 1;
    setsockopt(listener, IPPROTO_TCP, TCP_DEFER_ACCEPT, &seconds, sizeof seconds);
    queue = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, events[256];
    epoll_ctl(queue, EPOLL_CTL_ADD, listener, &event);
    uint64_t end = now_us() + time_limit_us(argv, MAX_SECONDS);
    while (now_us() < end) {
        int count = epoll_wait(queue, events, 256, 1000);
        for (int i = 0; i < count; i++) {
            if (events[i].data.fd == listener) accept_some(listener);
            else if (!serve(events[i].data.fd)) close(events[i].data.fd);
        }
    }
    return 0;
}
