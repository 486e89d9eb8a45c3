/* parallel.h: communicators: ranks that exchange bytes and sum tensors.
 *
 * A communicator connects `size` ranks, numbered from 0: threads of one process, processes of one machine that are
 * connected by sockets, or processes that mpirun or srun has started. Every rank has a handle of its own and uses it
 * from one thread at a time. Collective functions (tarn_comm_all_to_all() to tarn_comm_sum()) are called by all ranks
 * in the same order with matching sizes. A rank that fails, ends or does not answer breaks the communicator: all later
 * calls fail on all ranks. */
#ifndef TARN_PARALLEL_H
#define TARN_PARALLEL_H

#include <tarn/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tarn_comm tarn_comm;

/* Connects `size` threads of this process, 1 to 1024: ranks[i] becomes the handle of rank i. The caller owns all of
 * them and frees each, from any thread. */
TARN_API bool tarn_comm_threads(int size, tarn_comm **ranks);

/* Connects the processes of an MPI job: all that mpirun or srun has started together; a process that was started alone
 * is rank 0 of 1. Opens libtarn-mpi.so. One communicator per process, on its main thread. The caller owns it. NULL with
 * an error where MPI is missing. */
TARN_API tarn_comm *tarn_comm_mpi(void);

/* Connects the processes that torchrun has started on this machine, without MPI: over a local socket of this user, by
 * the environment variables RANK, WORLD_SIZE, LOCAL_WORLD_SIZE and MASTER_PORT. Waits up to two minutes for all of
 * them. The caller owns the communicator. NULL on error; processes on several machines are one, and need MPI. */
TARN_API tarn_comm *tarn_comm_torchrun(void);

/* Connects processes of one machine by two local sockets per rank: sockets[2 i] is a stream socket (SOCK_STREAM) to
 * rank i, sockets[2 i + 1] a SOCK_SEQPACKET one; the two of the own rank are not used. The caller owns the
 * communicator, which owns and closes the sockets. NULL on error; the sockets are then still the caller's. */
TARN_API tarn_comm *tarn_comm_sockets(int rank, int size, const int *sockets);

/* Number of ranks that the environment of this process announces: variables of mpirun, srun and torchrun; 1: none. */
TARN_API int tarn_comm_launched(void);

/* Rank and number of ranks; -1 on error. */
TARN_API int tarn_comm_rank(const tarn_comm *comm);
TARN_API int tarn_comm_size(const tarn_comm *comm);

/* Host name of a rank. Belongs to the communicator. NULL on error. */
TARN_API const char *tarn_comm_host(const tarn_comm *comm, int rank);

/* Connects the devices of all ranks; each rank passes its own. Tensors on these devices are then exchanged and summed
 * without host memory. CUDA devices are connected by NCCL, which this call opens: if it is missing, or if two ranks
 * share a GPU, that is an error. For other devices, and with TARN_NCCL=off, the call has no effect. */
TARN_API bool tarn_comm_connect(tarn_comm *comm, tarn_device device);

/* Writes how two devices of one backend are connected: "NVLink, 18 links of each", "PCIe, peer to peer" or "through
 * host memory"; "" if unknown. 64 bytes suffice. */
TARN_API bool tarn_device_link(tarn_device a, tarn_device b, char *buffer, size_t size);

/* How the ranks are connected: "NCCL 2.28.3" between devices, else "threads", "sockets" or "mpi". Valid until the
 * communicator is freed. NULL on error. */
TARN_API const char *tarn_comm_transport(const tarn_comm *comm);

/* Seconds that a call waits for another rank before it fails; 0: no limit. Default 120. */
TARN_API bool tarn_comm_set_timeout(tarn_comm *comm, double seconds);

/* Called at most once per step of a run when a call waits for another rank: after a quarter of its time limit, or at
 * once if the run was asked to stop. Called on rank 0, or on rank 1 if all wait for rank 0, with a sentence that names
 * rank, host and step. */
typedef void (*tarn_comm_notice_fn)(const char *text, void *ctx);

/* Sets the function that is called with notices of a wait; `ctx` is passed to it. NULL: the log (tarn_set_log()). */
TARN_API bool tarn_comm_set_notice(tarn_comm *comm, tarn_comm_notice_fn notice, void *ctx);

/* Frees a communicator. Under MPI all ranks free theirs before they end; after a failure the job is ended. NULL is
 * allowed; works while an error is pending. */
TARN_API void tarn_comm_free(tarn_comm *comm);

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

/* Sends piece i of `in`, in_bytes[i] bytes, to rank i, and receives piece i of `out`, out_bytes[i] bytes, from rank i.
 * Pieces are adjacent, in the order of ranks; `in` and `out` do not overlap. */
TARN_API bool tarn_comm_all_to_all(tarn_comm *comm, const void *in, const size_t *in_bytes, void *out,
                                   const size_t *out_bytes);

/* Gives every rank the pieces of all ranks, adjacent in the order of ranks: bytes[i] bytes of rank i. `in` is this
 * rank's piece; it may be its position in `out`. */
TARN_API bool tarn_comm_all_gather(tarn_comm *comm, const void *in, void *out, const size_t *bytes);

/* Copies memory of rank `root` to all ranks. */
TARN_API bool tarn_comm_broadcast(tarn_comm *comm, int root, void *memory, size_t bytes);

/* Waits until all ranks have called it. */
TARN_API bool tarn_comm_barrier(tarn_comm *comm);

/* One message between two ranks: the receiver gives the same number of bytes. Messages of a pair arrive in order. */
TARN_API bool tarn_comm_send(tarn_comm *comm, int to, const void *memory, size_t bytes);
TARN_API bool tarn_comm_receive(tarn_comm *comm, int from, void *memory, size_t bytes);

/* ---- sums -------------------------------------------------------------------------------------------------------- */

/* Sums tensors of all ranks: parts[0] to parts[count - 1] of rank 0, then those of rank 1, and so on, all f32 and of
 * one shape. `count` is the same on all ranks. `sum` gets the result on every rank; it may be parts[0]. The parts are
 * added as a binary tree in that order, so that the bits do not depend on the number of ranks that share them: 8 parts
 * of one rank, 4 of two or one of eight give the same result. Tensors of the connected device are summed there, others
 * on the CPU, bitwise identical. */
TARN_API bool tarn_comm_sum(tarn_comm *comm, tarn_tensor *const *parts, int count, tarn_tensor *sum);

/* ---- failures ---------------------------------------------------------------------------------------------------- */

/* False with an error if another rank has failed; does not wait. */
TARN_API bool tarn_comm_poll(tarn_comm *comm);

/* Tells all ranks that this one has failed and why: their calls fail with that text, the rank and its host. Works while
 * an error is pending; further calls have no effect. */
TARN_API void tarn_comm_abort(tarn_comm *comm, const char *text);

/* True on the rank that reports a failure, so that a job prints one sentence: rank 0, and a rank that has failed while
 * rank 0 did not answer. */
TARN_API bool tarn_comm_is_reporter(const tarn_comm *comm);

#ifdef __cplusplus
}
#endif
#endif
