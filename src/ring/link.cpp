// Messages over MPI that nobody waits for without end.
#include "ring/link.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string_view>
#include <thread>

#include "base/check.hpp"
#include "base/checked.hpp"

namespace attend::ring {
namespace {

constexpr double kHeartbeatSeconds = 0.2;                   // between two heartbeats
constexpr std::int64_t kMessageBytes = 8 << 20;             // a block travels in pieces: MPI counts in int
constexpr std::int64_t kMostPieces = 64;                    // of one block, unless MPI could not count its bytes
constexpr std::int64_t kMostBytes = std::int64_t{1} << 30;  // of one message

// What every rank tells every other before anything is computed.
struct Header {
  static constexpr std::size_t kMostFacts = 24;
  char op[64] = {};
  std::int64_t facts = 0;
  std::array<std::int64_t, kMostFacts> values{};
  std::int64_t failed = 0;
  char error[768] = {};
};

void copy_text(const std::string& from, char* to, std::size_t room) {
  const std::size_t count = std::min(from.size(), room - 1);
  std::memcpy(to, from.data(), count);
  to[count] = '\0';
}

std::string error_text(int code) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  return MPI_Error_string(code, text, &length) == MPI_SUCCESS ? std::string(text) : std::to_string(code);
}

std::string seconds_text(double seconds) {
  char text[32];
  (void)std::snprintf(text, sizeof text, "%.1f s", seconds);
  return text;
}

[[noreturn]] void end_run(MPI_Comm comm, const std::string& text) {
  int rank = 0, ranks = 0;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &ranks);
  const std::string line = "attend ring: rank " + std::to_string(rank) + " of " + std::to_string(ranks) + ": " + text +
                           "; this ends the run on all ranks\n";
  (void)std::fputs(line.c_str(), stderr);
  (void)std::fflush(stderr);
  MPI_Abort(comm, 1);
  std::_Exit(1);
}

// The communicator behind the integer, or InvalidArgument.
MPI_Comm communicator_of(const char* op, RingCommunicator comm) {
  int started = 0, ended = 0;
  MPI_Initialized(&started);
  MPI_Finalized(&ended);
  if (started == 0 || ended != 0) {
    fail(op, std::string("MPI is ") + (started == 0 ? "not started, expected MPI_Init before" : "already finalized"));
  }
  MPI_Comm found = MPI_Comm_f2c(comm.handle);
  if (found == nullptr || found == MPI_COMM_NULL) {
    fail(op, "communicator is " + std::to_string(comm.handle) + ", expected what MPI_Comm_c2f gave for one");
  }
  int inter = 0;
  MPI_Comm_test_inter(found, &inter);
  if (inter != 0) fail(op, "communicator joins two groups, expected one of a single group");
  return found;
}

// Whether another thread than the calling one may use MPI, if not both at once.
bool thread_allowed() {
  int level = MPI_THREAD_SINGLE;
  MPI_Query_thread(&level);
  return level >= MPI_THREAD_SERIALIZED;
}

// The duplicate goes with the communicator it was made from.
int forget_channel(MPI_Comm, int, void* value, void*);

int channel_key() {
  static const int key = [] {
    int made = MPI_KEYVAL_INVALID;
    MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, forget_channel, &made, nullptr);
    return made;
  }();
  return key;
}

}  // namespace

struct Channel {
  MPI_Comm comm = MPI_COMM_NULL;  // our own: no message of the program is taken for one of ours
  int rank = 0, ranks = 1;
  Clock::time_point last_heartbeat{};
  std::vector<Clock::time_point> heard;  // from each rank
  std::vector<MPI_Request> heartbeats;   // to each rank
  char heartbeat = 0;                    // what is sent; nobody reads it
};

namespace {

int forget_channel(MPI_Comm, int, void* value, void*) {
  const std::unique_ptr<Channel> channel(static_cast<Channel*>(value));
  for (MPI_Request& heartbeat : channel->heartbeats) {
    if (heartbeat != MPI_REQUEST_NULL) MPI_Request_free(&heartbeat);
  }
  return MPI_Comm_free(&channel->comm);
}

Channel* channel_of(const char* op, MPI_Comm comm, double timeout) {
  void* kept = nullptr;
  int found = 0;
  MPI_Comm_get_attr(comm, channel_key(), static_cast<void*>(&kept), &found);
  if (found != 0) return static_cast<Channel*>(kept);

  auto channel = std::make_unique<Channel>();
  MPI_Request request = MPI_REQUEST_NULL;
  int done = MPI_Comm_idup(comm, &channel->comm, &request) == MPI_SUCCESS ? 0 : -1;
  for (const Clock::time_point start = Clock::now(); done == 0;) {
    if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) done = -1;
    if (done == 0 && seconds_since(start) > timeout) {
      end_run(comm,
              std::string(op) + ": waited " + seconds_text(timeout) + " for all ranks to come to their first call");
    }
    std::this_thread::yield();
  }
  if (done < 0) end_run(comm, std::string(op) + ": the communicator could not be duplicated");
  MPI_Comm_set_errhandler(channel->comm, MPI_ERRORS_RETURN);
  MPI_Comm_rank(channel->comm, &channel->rank);
  MPI_Comm_size(channel->comm, &channel->ranks);
  channel->heard.resize(static_cast<std::size_t>(channel->ranks));
  channel->heartbeats.assign(static_cast<std::size_t>(channel->ranks), MPI_REQUEST_NULL);
  MPI_Comm_set_attr(comm, channel_key(), channel.get());
  return channel.release();
}

}  // namespace

Link::Link(RingCommunicator comm, const char* op, const RingOptions& options)
    : op_(op), timeout_(options.timeout_seconds), progress_(options.progress) {
  MPI_Comm found = communicator_of(op, comm);
  if (!(timeout_ > 0)) timeout_ = RingOptions{}.timeout_seconds;  // refused when the ranks agree
  if (progress_ == RingProgress::automatic) progress_ = thread_allowed() ? RingProgress::thread : RingProgress::slices;
  channel_ = channel_of(op, found, timeout_);
}

int Link::rank() const {
  return channel_->rank;
}
int Link::ranks() const {
  return channel_->ranks;
}

void Link::end_all(const std::string& text) const {
  end_run(channel_->comm, text.starts_with(op_) ? text : op_ + ": " + text);
}

std::string Link::current_error() {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return "out of memory";
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception of unknown type";
  }
}

void Link::check(int code, const char* what) const {
  if (code != MPI_SUCCESS) end_all(std::string(what) + " failed: " + error_text(code));
}

void Link::send(Kind kind, const void* data, std::int64_t bytes, int to, Messages& messages) {
  const std::int64_t piece = std::clamp(bytes / kMostPieces, kMessageBytes, kMostBytes);
  for (std::int64_t at = 0; at < bytes; at += piece) {
    messages.peers.push_back(to);
    MPI_Request& request = messages.requests.emplace_back(MPI_REQUEST_NULL);
    check(MPI_Isend(static_cast<const char*>(data) + at, static_cast<int>(std::min(piece, bytes - at)), MPI_BYTE, to,
                    static_cast<int>(kind), channel_->comm, &request),
          "MPI_Isend");
  }
  times.bytes_sent += bytes;
}

void Link::receive(Kind kind, void* data, std::int64_t bytes, int from, Messages& messages) {
  const std::int64_t piece = std::clamp(bytes / kMostPieces, kMessageBytes, kMostBytes);
  for (std::int64_t at = 0; at < bytes; at += piece) {
    messages.peers.push_back(from);
    MPI_Request& request = messages.requests.emplace_back(MPI_REQUEST_NULL);
    check(MPI_Irecv(static_cast<char*>(data) + at, static_cast<int>(std::min(piece, bytes - at)), MPI_BYTE, from,
                    static_cast<int>(kind), channel_->comm, &request),
          "MPI_Irecv");
  }
}

bool Link::finished(Messages& messages) {
  exchange_heartbeats();
  if (messages.requests.empty()) return true;
  int done = 0;
  check(MPI_Testall(static_cast<int>(messages.requests.size()), messages.requests.data(), &done, MPI_STATUSES_IGNORE),
        "MPI_Testall");
  if (done != 0) messages = {};
  return done != 0;
}

// A rank whose neighbour waits for a third one is silent as to data, and still alive: heartbeats tell it from a dead
// one, so that the message names the rank that is at fault.
void Link::exchange_heartbeats() {
  Channel& c = *channel_;
  const Clock::time_point now = Clock::now();
  if (std::chrono::duration<double>(now - c.last_heartbeat).count() < kHeartbeatSeconds) return;
  c.last_heartbeat = now;
  const auto tag = static_cast<int>(Kind::heartbeat);
  for (int peer = 0; peer < c.ranks; ++peer) {
    if (peer == c.rank) continue;
    MPI_Request& last = c.heartbeats[static_cast<std::size_t>(peer)];
    int sent = 1;
    if (last != MPI_REQUEST_NULL) check(MPI_Test(&last, &sent, MPI_STATUS_IGNORE), "MPI_Test");
    if (sent != 0) check(MPI_Isend(&c.heartbeat, 1, MPI_BYTE, peer, tag, c.comm, &last), "MPI_Isend");
  }
  for (;;) {
    int there = 0;
    MPI_Status status;
    check(MPI_Iprobe(MPI_ANY_SOURCE, tag, c.comm, &there, &status), "MPI_Iprobe");
    if (there == 0) return;
    char heartbeat = 0;
    check(MPI_Recv(&heartbeat, 1, MPI_BYTE, status.MPI_SOURCE, tag, c.comm, MPI_STATUS_IGNORE), "MPI_Recv");
    c.heard[static_cast<std::size_t>(status.MPI_SOURCE)] = now;
  }
}

// Any call moves all transfers, unless it has found what it wants: so it looks for what nobody sends.
void Link::move() {
  if (ranks() == 1) return;
  exchange_heartbeats();
  int there = 0;
  check(MPI_Iprobe(MPI_ANY_SOURCE, static_cast<int>(Kind::nothing), channel_->comm, &there, MPI_STATUS_IGNORE),
        "MPI_Iprobe");
}

void Link::start_moving() {
  if (ranks() == 1 || progress_ != RingProgress::thread) return;
  mpi_.lock();
  mover_ = std::thread([this] {
    // What moved takes time to do so, and there may be more; else the compute shall not be disturbed.
    constexpr double kMoved = 20e-6;
    constexpr std::chrono::milliseconds kPause(1);
    for (std::unique_lock lock(mpi_); !ended_;) {
      const Clock::time_point start = Clock::now();
      move();
      if (seconds_since(start) < kMoved) {
        end_.wait_for(lock, kPause, [&] { return ended_; });
      } else {
        lock.unlock();  // the calling thread may want it
        std::this_thread::yield();
        lock.lock();
      }
    }
  });
}

void Link::stop_moving() {
  if (!mover_.joinable()) return;
  ended_ = true;
  mpi_.unlock();
  end_.notify_one();
  mover_.join();
}

Link::~Link() {
  stop_moving();
}

void Link::check_silence(const Messages& messages, Clock::time_point start, const std::string& for_what) {
  for (std::size_t n = 0; n < messages.requests.size(); ++n) {
    int done = 0;
    check(MPI_Request_get_status(messages.requests[n], &done, MPI_STATUS_IGNORE), "MPI_Request_get_status");
    if (done != 0) continue;
    const int peer = messages.peers[n];
    const double silent = seconds_since(std::max(start, channel_->heard[static_cast<std::size_t>(peer)]));
    if (silent < timeout_) continue;
    end_all("heard nothing from rank " + std::to_string(peer) + " for " + seconds_text(silent) + " while waiting for " +
            for_what);
  }
}

void Link::wait(Messages& messages, const std::string& for_what) {
  constexpr double kPatience = 0.5;  // seconds until waiting becomes sleeping between looks
  const Clock::time_point start = Clock::now();
  while (!finished(messages)) {
    const double waited = seconds_since(start);
    if (waited > std::min(kPatience, timeout_)) {
      check_silence(messages, start, for_what);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    } else {
      std::this_thread::yield();
    }
  }
  times.wait += seconds_since(start);
}

// ---- Agreement ----

void Link::agree(const std::function<void(Facts&)>& local) {
  Facts facts;
  Header own;
  copy_text(op_, own.op, sizeof own.op);
  try {
    if (progress_ == RingProgress::thread && !thread_allowed()) {
      fail(op_, "progress is asked of a thread, expected MPI to be started with MPI_THREAD_SERIALIZED or more");
    }
    local(facts);
    if (facts.size() > Header::kMostFacts) fail(op_, "more facts than a header holds");
  } catch (...) {
    if (ranks() == 1) throw;
    own.failed = 1;
    copy_text(current_error(), own.error, sizeof own.error);
    facts.clear();
  }
  if (ranks() == 1) return;
  own.facts = std::ssize(facts);
  for (std::size_t n = 0; n < facts.size(); ++n) own.values[n] = facts[n].value;

  std::vector<Header> all(static_cast<std::size_t>(ranks()));
  all[static_cast<std::size_t>(rank())] = own;
  Messages messages;
  for (int peer = 0; peer < ranks(); ++peer) {
    if (peer == rank()) continue;
    receive(Kind::header, &all[static_cast<std::size_t>(peer)], sizeof(Header), peer, messages);
    send(Kind::header, &own, sizeof own, peer, messages);
  }
  wait(messages, "its arguments of " + op_);
  times = {};  // what comes before the ring is not the ring's

  const auto rank_text = [](std::size_t r) { return "rank " + std::to_string(r); };
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].failed == 0) continue;
    const std::string text = all[r].error, prefix = op_ + ": ";
    throw Refused(prefix + "refused by " + rank_text(r) + ": " +
                  (text.starts_with(prefix) ? text.substr(prefix.size()) : text));
  }
  for (std::size_t r = 1; r < all.size(); ++r) {
    if (std::strncmp(all[r].op, all[0].op, sizeof own.op) != 0) {
      throw Refused(op_ + ": rank 0 calls " + all[0].op + " and " + rank_text(r) + " " + all[r].op +
                    ", expected the same call on all ranks");
    }
  }
  for (std::size_t n = 0; n < facts.size(); ++n) {
    for (std::size_t r = 1; r < all.size(); ++r) {
      const std::int64_t first = all[0].values[n], other = all[r].values[n];
      if (first == other) continue;
      const std::string name = facts[n].name;
      if (facts[n].hash) throw Refused(op_ + ": " + name + " differ between rank 0 and " + rank_text(r));
      std::string text = op_ + ": " + name + " is " + std::to_string(first) + " on rank 0 and " +
                         std::to_string(other) + " on " + rank_text(r) + ", expected the same on all ranks";
      if (name == "tokens") {
        std::int64_t total = 0;
        for (const Header& header : all) total += header.values[n];
        text += " (equal parts of " + std::to_string(total) + " tokens";
        text += total % ranks() == 0 ? ")" : ", which " + std::to_string(ranks()) + " ranks do not divide)";
      }
      throw Refused(text);
    }
  }
}

// ---- Sums ----

// Each rank sums one share of the values for all: the sum of ranks 0, 1, 2, ... in double, rounded once.
void Link::sum(float* values, std::int64_t count) {
  const std::int64_t P = ranks(), share = divide_up(count, P);
  if (P == 1 || count == 0) return;
  const auto first = [&](std::int64_t r) { return std::min(count, r * share); };
  const auto bytes = [&](std::int64_t r) {
    return (first(r + 1) - first(r)) * static_cast<std::int64_t>(sizeof(float));
  };
  const std::int64_t own = first(rank()), own_count = first(rank() + 1) - own;
  std::vector<float> shares(static_cast<std::size_t>(P * own_count));
  const auto share_of = [&](std::int64_t r) { return shares.data() + r * own_count; };
  Messages messages;
  for (int peer = 0; peer < ranks(); ++peer) {
    if (peer == rank()) continue;
    receive(Kind::sums, share_of(peer), bytes(rank()), peer, messages);
    send(Kind::sums, values + first(peer), bytes(peer), peer, messages);
  }
  wait(messages, "its gradients of the parameters");
  std::copy_n(values + own, own_count, share_of(rank()));
  for (std::int64_t n = 0; n < own_count; ++n) {
    double total = 0;
    for (std::int64_t r = 0; r < P; ++r) total += static_cast<double>(share_of(r)[n]);
    values[own + n] = static_cast<float>(total);
  }
  for (int peer = 0; peer < ranks(); ++peer) {
    if (peer == rank()) continue;
    receive(Kind::sums, values + first(peer), bytes(peer), peer, messages);
    send(Kind::sums, values + own, bytes(rank()), peer, messages);
  }
  wait(messages, "its share of the summed gradients");
}

}  // namespace attend::ring

namespace attend {

void ring_abort(RingCommunicator comm, const std::string& text) {
  int started = 0, ended = 0;
  MPI_Initialized(&started);
  MPI_Finalized(&ended);
  MPI_Comm found = started != 0 && ended == 0 ? MPI_Comm_f2c(comm.handle) : MPI_COMM_NULL;
  if (found != nullptr && found != MPI_COMM_NULL) ring::end_run(found, text);
  (void)std::fputs(("attend ring: " + text + "\n").c_str(), stderr);
  std::_Exit(1);
}

void ring_run(RingCommunicator comm, const std::function<void()>& f) {
  try {
    f();
  } catch (...) {
    ring_abort(comm, ring::Link::current_error());
  }
}

}  // namespace attend
