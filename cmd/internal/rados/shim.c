//go:build cephfs && linux

#include "shim.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

#define CMP_EQ 1            // LIBRADOS_CMPXATTR_OP_EQ
#define CREATE_IDEMPOTENT 0 // LIBRADOS_CREATE_IDEMPOTENT
#define PAGE 1024           // pairs in one request

// What is used of the library: the result, the name, the arguments. These functions are in every
// librados.so.2 since version 14.
#define RADOS(f) \
	f(int, rados_create, (void **cluster, const char *id)) \
	f(int, rados_conf_read_file, (void *cluster, const char *path)) \
	f(int, rados_conf_parse_env, (void *cluster, const char *name)) \
	f(int, rados_conf_set, (void *cluster, const char *option, const char *value)) \
	f(int, rados_connect, (void *cluster)) \
	f(void, rados_shutdown, (void *cluster)) \
	f(int, rados_ioctx_create, (void *cluster, const char *pool, void **io)) \
	f(void, rados_ioctx_destroy, (void *io)) \
	f(void, rados_ioctx_set_namespace, (void *io, const char *space)) \
	f(void *, rados_create_write_op, (void)) \
	f(void, rados_release_write_op, (void *op)) \
	f(void, rados_write_op_create, (void *op, int exclusive, const char *category)) \
	f(void, rados_write_op_omap_cmp2, (void *op, const char *key, uint8_t how, const char *value, size_t keylen, size_t len, int *result)) \
	f(void, rados_write_op_omap_set2, (void *op, char const *const *keys, char const *const *values, const size_t *keylens, const size_t *lens, size_t n)) \
	f(void, rados_write_op_omap_rm_keys2, (void *op, char const *const *keys, const size_t *keylens, size_t n)) \
	f(int, rados_write_op_operate, (void *op, void *io, const char *object, void *mtime, int flags)) \
	f(int, rados_remove, (void *io, const char *object)) \
	f(void *, rados_create_read_op, (void)) \
	f(void, rados_release_read_op, (void *op)) \
	f(void, rados_read_op_omap_get_vals2, (void *op, const char *after, const char *prefix, uint64_t n, void **list, unsigned char *more, int *result)) \
	f(int, rados_read_op_operate, (void *op, void *io, const char *object, int flags)) \
	f(int, rados_omap_get_next2, (void *list, char **key, char **value, size_t *keylen, size_t *len)) \
	f(void, rados_omap_get_end, (void *list)) \
	f(int, rados_mon_command, (void *cluster, const char **cmd, size_t n, const char *in, size_t inlen, char **out, size_t *outlen, char **status, size_t *statuslen)) \
	f(void, rados_buffer_free, (char *p))

static struct {
#define MEMBER(result, name, arguments) result(*name) arguments;
	RADOS(MEMBER)
#undef MEMBER
} fn;

static char load_error[256];
static void *library;

const char *rr_load(void)
{
	if (library)
		return NULL;
	void *lib = dlopen("librados.so.2", RTLD_NOW);
#define FIND(result, name, arguments) if (!lib || !(fn.name = dlsym(lib, #name))) goto failed;
	RADOS(FIND)
#undef FIND
	library = lib;
	return NULL;
failed:
	strncpy(load_error, dlerror(), sizeof(load_error) - 1);
	if (lib)
		dlclose(lib);
	return load_error;
}

int rr_open(void **cluster, void **io, const char *pool, const char *space, const char *timeout)
{
	int r = fn.rados_create(cluster, NULL);
	if (r < 0)
		return r;
	if ((r = fn.rados_conf_read_file(*cluster, NULL)) < 0 || (r = fn.rados_conf_parse_env(*cluster, NULL)) < 0 ||
	    (r = fn.rados_conf_set(*cluster, "rados_osd_op_timeout", timeout)) < 0 ||
	    (r = fn.rados_conf_set(*cluster, "rados_mon_op_timeout", timeout)) < 0 ||
	    (r = fn.rados_conf_set(*cluster, "client_mount_timeout", timeout)) < 0 ||
	    (r = fn.rados_connect(*cluster)) < 0 || (r = fn.rados_ioctx_create(*cluster, pool, io)) < 0) {
		fn.rados_shutdown(*cluster);
		return r;
	}
	fn.rados_ioctx_set_namespace(*io, space);
	return 0;
}

void rr_close(void *cluster, void *io)
{
	fn.rados_ioctx_destroy(io);
	fn.rados_shutdown(cluster);
}

int rr_pairs(void *io, const char *object, const char *prefix, uintptr_t to)
{
	char after[4096] = "";
	unsigned char more = 1;
	while (more) {
		void *list = NULL;
		int result = 0;
		void *op = fn.rados_create_read_op();
		fn.rados_read_op_omap_get_vals2(op, after, prefix, PAGE, &list, &more, &result);
		int r = fn.rados_read_op_operate(op, io, object, 0);
		if (r >= 0)
			r = result;
		char *key, *value;
		size_t keylen, len, got = 0;
		while (r >= 0 && (r = fn.rados_omap_get_next2(list, &key, &value, &keylen, &len)) >= 0 && key) {
			rrPair(to, key, keylen, value, len);
			if (keylen >= sizeof(after))
				r = -ENAMETOOLONG;
			else {
				memcpy(after, key, keylen);
				after[keylen] = 0;
			}
			got++;
		}
		if (list)
			fn.rados_omap_get_end(list);
		fn.rados_release_read_op(op);
		if (r < 0)
			return r;
		if (!got)
			break;
	}
	return 0;
}

#define MOST 1024 // keys in one request

int rr_change(void *io, const char *object, int nis, struct rr_bytes *iskeys, struct rr_bytes *is, int nset,
	      struct rr_bytes *setkeys, struct rr_bytes *set, int nremove, struct rr_bytes *remove)
{
	const char *keys[MOST], *values[MOST];
	size_t keylens[MOST], lens[MOST];
	if (nset > MOST || nremove > MOST)
		return -E2BIG;
	void *op = fn.rados_create_write_op();
	for (int i = 0; i < nis; i++)
		fn.rados_write_op_omap_cmp2(op, iskeys[i].p, CMP_EQ, is[i].p, iskeys[i].n, is[i].n, NULL);
	for (int i = 0; i < nset; i++) {
		keys[i] = setkeys[i].p, keylens[i] = setkeys[i].n;
		values[i] = set[i].p, lens[i] = set[i].n;
	}
	if (nset)
		fn.rados_write_op_omap_set2(op, keys, values, keylens, lens, nset);
	for (int i = 0; i < nremove; i++)
		keys[i] = remove[i].p, keylens[i] = remove[i].n;
	if (nremove)
		fn.rados_write_op_omap_rm_keys2(op, keys, keylens, nremove);
	int r = fn.rados_write_op_operate(op, io, object, NULL, 0);
	fn.rados_release_write_op(op);
	return r;
}

int rr_create(void *io, const char *object)
{
	void *op = fn.rados_create_write_op();
	fn.rados_write_op_create(op, CREATE_IDEMPOTENT, NULL);
	int r = fn.rados_write_op_operate(op, io, object, NULL, 0);
	fn.rados_release_write_op(op);
	return r;
}

int rr_delete(void *io, const char *object) { return fn.rados_remove(io, object); }

int rr_command(void *cluster, const char *command, char **out, size_t *n)
{
	char *status = NULL;
	size_t len = 0;
	int r = fn.rados_mon_command(cluster, &command, 1, "", 0, out, n, &status, &len);
	if (status)
		fn.rados_buffer_free(status);
	return r;
}

void rr_free(char *out)
{
	if (out)
		fn.rados_buffer_free(out);
}
