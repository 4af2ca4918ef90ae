// Ring attention: one sequence over several processes under MPI. A library of its own, attend_ring (attend::ring).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "attend/attention.hpp"
#include "attend/export.h"
#include "attend/multi_head_attention.hpp"
#include "attend/tensor.hpp"

namespace attend {

// A communicator of MPI as the integer that other languages know it by: MPI_Comm_c2f(comm), in mpi4py comm.py2f(). This
// header needs no mpi.h. MPI must have been started.
struct RingCommunicator {
  int handle = 0;
};

// Which tokens of a sequence of length L the P ranks hold. L must be a multiple of P, for zigzag of 2P.
enum class RingSharding {
  contiguous,  // rank r holds [r L/P, (r + 1) L/P)
  zigzag,      // of 2P chunks rank r holds chunk r, then chunk 2P - 1 - r: with a causal mask all have the same work
};

// The place in the sequence of each token that `rank` holds, in the order in which it holds them.
ATTEND_API std::vector<std::int64_t> ring_positions(RingSharding sharding, std::int64_t rank, std::int64_t ranks,
                                                    std::int64_t length);
inline std::vector<std::int64_t> zigzag_positions(std::int64_t rank, std::int64_t ranks, std::int64_t length) {
  return ring_positions(RingSharding::zigzag, rank, ranks, length);
}

// The rank's tokens of a whole [B, H, L, D], and these put back in their places in the whole.
ATTEND_API Tensor ring_part(View whole, RingSharding sharding, std::int64_t rank, std::int64_t ranks);
ATTEND_API void ring_place(View part, MutableView whole, RingSharding sharding, std::int64_t rank, std::int64_t ranks);

// Where the time of one rank went, in seconds; calls add to it.
struct RingTimes {
  double compute = 0;           // attention and merging
  double progress = 0;          // of the calling thread in MPI between slices of compute
  double wait = 0;              // for the ring, with nothing to compute
  std::int64_t bytes_sent = 0;  // by this rank
};

// Large messages move only inside calls of MPI. Who calls it while a rank computes?
enum class RingProgress {
  automatic,  // a thread where MPI allows it, else slices
  thread,     // a thread beside the compute; MPI must have been started with MPI_THREAD_SERIALIZED or more
  slices,     // the calling thread, between slices of compute
  none,       // nobody: they move while a rank waits
};

struct RingOptions {
  RingSharding sharding = RingSharding::contiguous;
  // Counts positions in the whole sequence. Mask rules: causal, window, padding, prefix. Scale, soft-cap, ALiBi and
  // precision work too; a bias, a rule, sinks and dropout are refused.
  AttentionOptions attention{};
  // A rank from which nothing was heard for so long ends the run. Ranks in the call give a sign of life several times a
  // second, so this need not cover a step's compute, only how much later than others a rank may enter the call.
  double timeout_seconds = 60;
  RingProgress progress = RingProgress::automatic;
  // Multiplications in one go, about; signs of life and RingProgress::slices come between two. The results of backward
  // hang on it by a rounding, those of forward do not.
  double slice_work = 0x1p28;
  std::function<void(std::int64_t step)> on_step{};  // called before the compute of each of the P steps
  RingTimes* times = nullptr;
};

// Every rank of the communicator calls with its part of one sequence: q [B, H, L/P, D], k [B, Hk, L/P, D],
// v [B, Hk, L/P, E] -> out [B, H, L/P, E] and lse [B, H, L/P, 1] (f32), f32, f16 or bf16. While a rank computes with
// the K and V in hand, the next come from rank - 1 and those in hand go to rank + 1; the results, each with its LSE,
// are merged in the order of arrival, which is that of the ring and no matter of timing: the same bits every time and
// for any number of threads. Memory for two blocks of K and V beyond the arguments, and the sums in f32.
//
// InvalidArgument is thrown on all ranks alike: for a bad argument of any of them (the text says whose), for shapes or
// options that differ. A failure after that, a rank that throws or stays silent, ends the whole run: the text goes to
// standard error and MPI_Abort ends the rest.
ATTEND_API void ring_attention(RingCommunicator comm, View q, View k, View v, MutableView out,
                               const RingOptions& options = {}, std::optional<MutableView> lse = std::nullopt);

struct RingGradients {
  MutableView dq, dk, dv;
};
// `out` and `lse` as ring_attention gave them, with the same options. K and V go round once more, and with them their
// gradients in f32, to which every rank adds its share; overwrites the gradients.
ATTEND_API void ring_attention_backward(RingCommunicator comm, View dout, View q, View k, View v, View out, View lse,
                                        const RingGradients& gradients, const RingOptions& options = {});

// MultiHeadAttention::forward for x [B, 1, L/P, width], self-attention: projections are local, RoPE rotates by the
// places of the rank's tokens. The layer's parameters must be the same on all ranks.
ATTEND_API Tensor ring_multi_head_attention(RingCommunicator comm, const MultiHeadAttention& layer, View x,
                                            const RingOptions& options = {}, MultiHeadAttentionSaved* saved = nullptr);
// dx is that of the rank's tokens; the gradients of the parameters are summed over the ranks in rising order, and the
// same on all.
ATTEND_API MultiHeadAttentionGradients ring_multi_head_attention_backward(RingCommunicator comm,
                                                                          const MultiHeadAttention& layer, View dout,
                                                                          const MultiHeadAttentionSaved& saved,
                                                                          const RingOptions& options = {});

// Passes k and v once around and computes nothing: the seconds that the transfers of ring_attention take on their own,
// or with `backward` those of ring_attention_backward.
ATTEND_API double ring_transfer_seconds(RingCommunicator comm, View k, View v, bool backward = false,
                                        const RingOptions& options = {});

// Ends the run on all ranks: the text to standard error, then MPI_Abort. For a rank that cannot go on.
[[noreturn]] void ring_abort(RingCommunicator comm, const std::string& text);

// Runs f(); an exception that leaves it ends the run on all ranks, with its text.
ATTEND_API void ring_run(RingCommunicator comm, const std::function<void()>& f);

}  // namespace attend
