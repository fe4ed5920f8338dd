/* fakes: many backends in one cheap process, reached as 127.1.y.z, each address a backend.
 *
 *     fakes port=N agent=N task=HEX count=HEX [interval=1] [seconds=S]
 *
 * On `port` it speaks MessagePack: a batch that asks for UserCount is answered with `count`, any other with `task`.
 * On `agent` it is an agent of HAProxy: "up 10%" to whoever connects, and the end.
 * It prints {"ready": 1}. Each line of its input has it print what it saw since the line before; it ends with its input.
 */
#define _GNU_SOURCE
#include "net.h"

enum { BACKENDS = 65536, IN_BYTES = 1024, ACCEPTS_A_TURN = 64, IN_A_ROW = 250 };

struct peer {
    int fd;
    unsigned backend;
    size_t got;
    unsigned char in[IN_BYTES];
};

static int queue, port_fd, agent_fd;
static unsigned char task[256], count[256];
static size_t task_bytes, count_bytes;
static uint64_t interval, probes, agents, opened, open_now, longest;
static uint64_t last[BACKENDS], asked[BACKENDS]; /* when it was last asked; how often since the last line */
static struct histogram off, late; /* by how much gaps differ from the interval; by how much they exceed it */

/* Backend 250 y + z - 1 stands at 127.1.y.z. */
static unsigned backend_of(int fd) {
    struct sockaddr_in here;
    socklen_t length = sizeof here;
    if (getsockname(fd, (struct sockaddr *)&here, &length) < 0) return 0;
    uint32_t host = ntohl(here.sin_addr.s_addr);
    return ((host >> 8 & 255) * IN_A_ROW + (host & 255) + BACKENDS - 1) % BACKENDS;
}

static void note(unsigned backend) {
    uint64_t now = now_us();
    asked[backend]++;
    if (last[backend]) {
        uint64_t gap = now - last[backend];
        hist_add(&off, gap > interval ? gap - interval : interval - gap);
        hist_add(&late, gap > interval ? gap - interval : 0);
        if (gap > longest) longest = gap;
    }
    last[backend] = now;
}

static void part(struct peer *peer) {
    close(peer->fd);
    free(peer);
    open_now--;
}

/* Answer the batches at hand; return 0 when this peer is to be left. */
static int answer(struct peer *peer) {
    unsigned char out[2048];
    size_t at = 0, bytes = 0;
    for (long length; (length = value_end(peer->in + at, peer->got - at)) != 0; at += (size_t)length) {
        if (length < 0 || bytes + sizeof task > sizeof out) return 0;
        int counts = memmem(peer->in + at, (size_t)length, "UserCount", 9) != NULL;
        memcpy(out + bytes, counts ? count : task, counts ? count_bytes : task_bytes);
        bytes += counts ? count_bytes : task_bytes;
        if (counts) probes++, note(peer->backend);
    }
    memmove(peer->in, peer->in + at, peer->got - at);
    peer->got -= at;
    return bytes == 0 || send(peer->fd, out, bytes, MSG_NOSIGNAL) == (ssize_t)bytes;
}

static void hear(struct peer *peer) {
    ssize_t n = recv(peer->fd, peer->in + peer->got, IN_BYTES - peer->got, 0);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) return part(peer);
    peer->got += (size_t)n;
    if (!answer(peer)) part(peer);
}

static void meet(void) {
    for (int i = 0; i < ACCEPTS_A_TURN; i++) {
        int fd = accept4(port_fd, NULL, NULL, SOCK_NONBLOCK);
        if (fd < 0) return;
        struct peer *peer = calloc(1, sizeof *peer);
        if (!peer) die("memory");
        peer->fd = fd;
        peer->backend = backend_of(fd);
        opened++;
        open_now++;
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = peer};
        epoll_ctl(queue, EPOLL_CTL_ADD, fd, &event);
        hear(peer);
    }
}

static void meet_agent(void) {
    for (int i = 0; i < ACCEPTS_A_TURN; i++) {
        int fd = accept4(agent_fd, NULL, NULL, SOCK_NONBLOCK);
        if (fd < 0) return;
        agents++;
        note(backend_of(fd));
        if (send(fd, "up 10%\n", 7, MSG_NOSIGNAL) != 7) fprintf(stderr, "an agent's answer was not taken\n");
        close(fd);
    }
}

static void tell(void) {
    uint64_t now = now_us(), seen = 0;
    for (unsigned i = 0; i < BACKENDS; i++) {
        if (last[i] && now - last[i] > longest) longest = now - last[i];
        seen += asked[i] > 0;
    }
    printf("{\"probes\": %lu, \"agents\": %lu, \"opened\": %lu, \"open\": %lu, \"seen\": %lu, \"off_p99_us\": %lu, "
           "\"late_p99_us\": %lu, \"longest_us\": %lu, \"cpu_s\": %.6f}\n",
           probes, agents, opened, open_now, seen, hist_at(&off, 0.99), hist_at(&late, 0.99), longest, own_cpu_s());
    fflush(stdout);
    probes = agents = opened = longest = 0;
    memset(asked, 0, sizeof asked);
    memset(&off, 0, sizeof off);
    memset(&late, 0, sizeof late);
}

/* Obey the input; return 0 at its end. */
static int obey(void) {
    char lines[256];
    ssize_t n = read(0, lines, sizeof lines);
    for (ssize_t i = 0; i < n; i++)
        if (lines[i] == '\n') tell();
    return n != 0;
}

int main(int argc, char **argv) {
    (void)argc;
    static int input = 0;
    task_bytes = from_hex(option(argv, "task", ""), task, sizeof task);
    count_bytes = from_hex(option(argv, "count", ""), count, sizeof count);
    interval = (uint64_t)(number(argv, "interval", 1) * 1e6);
    allow_descriptors();
    port_fd = listen_on(INADDR_ANY, (int)number(argv, "port", 0));
    agent_fd = listen_on(INADDR_ANY, (int)number(argv, "agent", 0));
    queue = epoll_create1(0);
    int *own[] = {&port_fd, &agent_fd, &input};
    for (int i = 0; i < 3; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = own[i]};
        epoll_ctl(queue, EPOLL_CTL_ADD, *own[i], &event);
    }
    fcntl(0, F_SETFL, O_NONBLOCK);
    puts("{\"ready\": 1}");
    fflush(stdout);
    struct epoll_event events[512];
    for (uint64_t end = now_us() + time_limit_us(argv, MAX_SECONDS); now_us() < end;) {
        int ready = epoll_wait(queue, events, 512, 1000);
        for (int i = 0; i < ready; i++) {
            void *who = events[i].data.ptr;
            if (who == &port_fd) meet();
            else if (who == &agent_fd) meet_agent();
            else if (who != &input) hear(who);
            else if (!obey()) return 0;
        }
    }
    return 0;
}
