/* SPDX-License-Identifier: MIT */
#include "server/http/tls.h"

#include "base/check.h"
#include "base/sys.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <string.h>

struct sl_tls {
    pthread_mutex_t lock;
    SSL_CTX *ctx; /* exchanged with the lock */
    const char *cert_file, *key_file;
};

struct sl_tls_session {
    SSL *ssl;
    bool wants_write;
};

/* The oldest complaint of OpenSSL on this thread. */
static int tls_fail(struct sl_error *err, int code, const char *what, const char *file)
{
    unsigned long e = ERR_get_error();
    const char *why =
        ERR_SYSTEM_ERROR(e) ? strerror(ERR_GET_REASON(e)) : ERR_reason_error_string(e);
    ERR_clear_error();
    return sl_fail(err, code, "%s %s: %s", what, file, why != NULL ? why : "unknown");
}

/* HTTP/1.1 is all that is spoken; who wants only something else goes on without an agreement. */
static int choose_protocol(SSL *ssl, const unsigned char **out, unsigned char *n_out,
                           const unsigned char *in, unsigned n_in, void *arg)
{
    static const unsigned char ours[] = "\x08http/1.1";
    unsigned char *chosen;
    (void)ssl;
    (void)arg;
    if (SSL_select_next_proto(&chosen, n_out, ours, sizeof ours - 1, in, n_in) !=
        OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_NOACK;
    *out = chosen;
    return SSL_TLSEXT_ERR_OK;
}

/* Never asks on a terminal: a key with a password is refused. */
static int no_password(char *buf, int size, int writing, void *arg)
{
    (void)buf;
    (void)size;
    (void)writing;
    (void)arg;
    return -1;
}

static int make_ctx(const struct sl_tls *t, SSL_CTX **out, struct sl_error *err)
{
    SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
    int rc = 0;
    *out = NULL;
    if (ctx == NULL)
        return tls_fail(err, SL_ENOMEM, "TLS for", t->cert_file);
    SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
    SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_IGNORE_UNEXPECTED_EOF |
                                 SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE);
    SSL_CTX_set_mode(ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                              SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_alpn_select_cb(ctx, choose_protocol, NULL);
    SSL_CTX_set_default_passwd_cb(ctx, no_password);
    if (SSL_CTX_use_certificate_chain_file(ctx, t->cert_file) != 1)
        rc = tls_fail(err, SL_EINVAL, "--ssl-certfile", t->cert_file);
    else if (SSL_CTX_use_PrivateKey_file(ctx, t->key_file, SSL_FILETYPE_PEM) != 1)
        rc = tls_fail(err, SL_EINVAL, "--ssl-keyfile", t->key_file);
    else if (SSL_CTX_check_private_key(ctx) != 1)
        rc = tls_fail(err, SL_EINVAL, "--ssl-keyfile", t->key_file);
    if (rc != 0)
        SSL_CTX_free(ctx);
    else
        *out = ctx;
    return rc;
}

int sl_tls_create(const char *cert_file, const char *key_file, struct sl_tls **out,
                  struct sl_error *err)
{
    SL_ASSERT(cert_file != NULL);
    struct sl_tls *t = sl_calloc(1, sizeof *t);
    *out = NULL;
    if (t == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory");
    pthread_mutex_init(&t->lock, NULL);
    t->cert_file = cert_file;
    t->key_file = key_file != NULL ? key_file : cert_file; /* one file may hold both */
    int rc = make_ctx(t, &t->ctx, err);
    if (rc != 0)
        sl_tls_destroy(t);
    else
        *out = t;
    return rc;
}

void sl_tls_destroy(struct sl_tls *t)
{
    if (t == NULL)
        return;
    SSL_CTX_free(t->ctx);
    pthread_mutex_destroy(&t->lock);
    sl_free(t);
}

int sl_tls_reload(struct sl_tls *t, struct sl_error *err)
{
    SSL_CTX *next, *old;
    int rc = make_ctx(t, &next, err);
    if (rc != 0)
        return rc;
    pthread_mutex_lock(&t->lock);
    old = t->ctx;
    t->ctx = next;
    pthread_mutex_unlock(&t->lock);
    SSL_CTX_free(old); /* sessions hold it as long as they need it */
    return 0;
}

struct sl_tls_session *sl_tls_accept(struct sl_tls *t, int fd)
{
    struct sl_tls_session *s = sl_calloc(1, sizeof *s);
    if (s == NULL)
        return NULL;
    pthread_mutex_lock(&t->lock);
    s->ssl = SSL_new(t->ctx);
    pthread_mutex_unlock(&t->lock);
    if (s->ssl == NULL || SSL_set_fd(s->ssl, fd) != 1) {
        ERR_clear_error();
        sl_tls_end(s);
        return NULL;
    }
    SSL_set_accept_state(s->ssl);
    return s;
}

void sl_tls_end(struct sl_tls_session *s)
{
    SSL_free(s->ssl);
    sl_free(s);
}

/* What OpenSSL says, in the words of read and write. */
static ssize_t result_of(struct sl_tls_session *s, int n, bool writing)
{
    if (n > 0)
        return n;
    int why = SSL_get_error(s->ssl, n), saved = errno;
    ERR_clear_error();
    s->wants_write = !writing && why == SSL_ERROR_WANT_WRITE;
    if (why == SSL_ERROR_ZERO_RETURN)
        return 0;
    bool later = why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE;
    /* Output waits for room only. What waits for the peer's bytes would be asked again at once. */
    if (writing && why == SSL_ERROR_WANT_READ)
        later = false;
    errno = later ? EAGAIN : why == SSL_ERROR_SYSCALL && saved != 0 ? saved : EPROTO;
    if (!later && (errno == EAGAIN || errno == EINTR))
        errno = EPROTO;
    return -1;
}

ssize_t sl_tls_read(struct sl_tls_session *s, void *buf, size_t n)
{
    SL_ASSERT(n > 0 && n <= INT32_MAX);
    ERR_clear_error();
    s->wants_write = false;
    return result_of(s, SSL_read(s->ssl, buf, (int)n), false);
}

ssize_t sl_tls_write(struct sl_tls_session *s, const void *buf, size_t n)
{
    SL_ASSERT(n > 0);
    ERR_clear_error();
    return result_of(s, SSL_write(s->ssl, buf, (int)SL_MIN(n, INT32_MAX)), true);
}

bool sl_tls_is_open(const struct sl_tls_session *s)
{
    return SSL_is_init_finished(s->ssl);
}

bool sl_tls_wants_write(const struct sl_tls_session *s)
{
    return s->wants_write;
}

void sl_tls_say_goodbye(struct sl_tls_session *s)
{
    if (!sl_tls_is_open(s))
        return;
    ERR_clear_error();
    int n = SSL_shutdown(s->ssl);
    (void)n; /* what cannot be sent now is not needed: the length of a reply says where it ends */
    ERR_clear_error();
}
