/* The program of idle containers in tests. Without an argument it waits for SIGTERM or SIGINT, like a pod's sandbox. With a
 * port as its argument, it also answers every HTTP request to that port with 200, so that probes succeed. */
#include <arpa/inet.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int signal) {
    (void)signal;
    _exit(0);
}

static void reap(int signal) {
    (void)signal;
    while (waitpid(-1, NULL, WNOHANG) > 0) {
    }
}

int main(int count, char **arguments) {
    static const char answer[] = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    char request[4096];
    signal(SIGINT, end);
    signal(SIGTERM, end);
    signal(SIGCHLD, reap);
    if (count < 2)
        for (;;)
            pause();

    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(arguments[1]))};
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 16))
        return 1;
    for (;;) {
        int caller = accept(listener, NULL, NULL);
        if (caller < 0)
            continue;
        if (read(caller, request, sizeof request) > 0 && write(caller, answer, sizeof answer - 1) < 0)
            (void)0;
        close(caller);
    }
}
