/* mpi.c: the communicator between processes of an MPI job. libtarn links no MPI: libtarn-mpi.so does, and is opened
 * here, next to libtarn or in TARN_BACKEND_PATH. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/os/platform.h"
#include "core/device/device.h"
#include "parallel/comm.h"

/* Loads the library and starts MPI. NULL with an error. The library stays loaded: MPI cannot be started twice. */
static const tarn__comm_row *open_row(const char *function, tarn__mpi_job *job)
{
    char path[2304], why[512] = "";
    if (!tarn__plugin_find("mpi", path, sizeof(path))) {
        tarn__raise(TARN_ERROR_UNSUPPORTED,
                    "%s: libtarn-mpi.so not found next to libtarn or in TARN_BACKEND_PATH; build tarn where MPI is "
                    "installed (libopenmpi-dev)",
                    function);
        return NULL;
    }
    /* dlsym() returns a function as an object pointer; POSIX guarantees equal representations. */
    union {
        void *object;
        tarn__mpi_entry_fn call;
    } entry = {tarn__platform_symbol(path, TARN__MPI_SYMBOL, why, sizeof(why))};
    const tarn__comm_row *row =
        entry.object
            ? entry.call(&(tarn__mpi_host){tarn_version(), sizeof(tarn_comm), tarn__comm_notice}, job, why, sizeof(why))
            : NULL;
    if (!row)
        tarn__raise(TARN_ERROR_UNSUPPORTED, "%s: %s does not work here: %s", function, path, why);
    return row;
}

/* Gives every rank the host names of all. */
static bool gather_hosts(tarn_comm *comm)
{
    size_t own = (size_t)comm->rank, *bytes = malloc(sizeof(*bytes) * (size_t)comm->size);
    bool good = bytes != NULL || tarn__raise(TARN_ERROR_MEMORY, "comm_mpi: out of memory");
    for (int i = 0; good && i < comm->size; i++)
        bytes[i] = sizeof(comm->host[0]);
    tarn__platform_host_name(comm->host[own], sizeof(comm->host[own]));
    good = good && tarn_comm_all_gather(comm, comm->host[own], comm->host, bytes);
    free(bytes);
    return good;
}

/* mpirun or srun may have started processes that MPI does not connect: each would be a run of its own. */
static bool check_launched(const char *function, int size)
{
    int launched = tarn_comm_launched();
    return launched == 1 || launched == size ||
           tarn__raise(TARN_ERROR_ARGUMENT,
                       "%s: %d processes were launched, but MPI connects %d; start them with mpirun, or with srun "
                       "--mpi=pmix",
                       function, launched, size);
}

tarn_comm *tarn_comm_mpi(void)
{
    static const char *const function = "comm_mpi";
    tarn__mpi_job job = {.size = 1};
    const tarn__comm_row *row = tarn_failed() ? NULL : open_row(function, &job);
    tarn_comm *comm = row ? tarn__comm_new(function, row, NULL, job.rank, job.size) : NULL;
    if (comm)
        comm->is_single_threaded = job.is_single_threaded;
    if (comm && check_launched(function, job.size) && gather_hosts(comm))
        return comm;
    tarn_comm_free(comm);
    return NULL;
}
