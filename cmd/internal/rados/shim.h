#ifndef RSTORED_RADOS_H
#define RSTORED_RADOS_H

#include <stddef.h>
#include <stdint.h>

// rr_load opens librados. It returns NULL, or why the library cannot be used.
const char *rr_load(void);

// rr_open connects to the cluster. The function returns 0, or a negative errno.
int rr_open(void **cluster, void **io, const char *pool, const char *space, const char *timeout);
void rr_close(void *cluster, void *io);

// A string of bytes.
struct rr_bytes {
	const char *p;
	size_t n;
};

// rr_pairs calls rrPair for each pair of an object whose key begins with the prefix.
int rr_pairs(void *io, const char *object, const char *prefix, uintptr_t to);
void rrPair(uintptr_t to, char *key, size_t keylen, char *value, size_t len);

// rr_change sets and removes keys if the object has the pairs of is. The object must exist. The
// function returns -ECANCELED if it has other values.
int rr_change(void *io, const char *object, int nis, struct rr_bytes *iskeys, struct rr_bytes *is, int nset,
	      struct rr_bytes *setkeys, struct rr_bytes *set, int nremove, struct rr_bytes *remove);
int rr_create(void *io, const char *object);
int rr_delete(void *io, const char *object);

// rr_command sends a command to the monitors. rr_free frees out.
int rr_command(void *cluster, const char *command, char **out, size_t *n);
void rr_free(char *out);

#endif
