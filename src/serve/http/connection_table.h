// Which connections are open, and which one goes when another comes and there is no room.
//
// A connection is silent until the head of its first request has come, busy from there to the end
// of the answer, and idle between two requests. Anyone can open connections, so those that have
// shown nothing must not keep others out: the oldest silent one makes room for a newcomer, then the
// oldest idle one that has shown no key. One address holds only a part of the table, and a few
// places above the limit are a reserve for requests that must always get through.
#pragma once

#include <boost/asio/ip/address.hpp>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace loopspec::serve {

class Connection;

// Who counts as one client: an IPv4 address, or the /64 network of an IPv6 address, in which one
// machine may have as many addresses as it likes.
std::string NetworkOf(boost::asio::ip::address address);

// How long a newcomer may take to its first byte when `open` of `limit` connections are there:
// `most` up to half of them, then less in a straight line, to a tenth when the table is full.
std::chrono::milliseconds FirstByteTime(int64_t open, int64_t limit,
                                        std::chrono::milliseconds most);

class ConnectionTable {
 public:
  struct Limits {
    int connections = 0;
    int per_address = 0;
    int reserve = 0;                              // places above `connections`
    std::unordered_set<std::string> exempt = {};  // addresses without a limit of their own
  };
  // The limits for at most `connections`. `per_address` 0: a quarter of them, but at least 32.
  static Limits MakeLimits(int connections, int per_address,
                           const std::vector<std::string>& exempt);

  explicit ConnectionTable(Limits limits) : limits_(std::move(limits)) {}

  enum class Place {
    kTable,
    kReserve,  // to be served only where the request is one that the reserve is for
    kNone,     // to be closed at once
  };
  struct Arrival {
    Place place = Place::kNone;
    std::shared_ptr<Connection> evicted = {};  // makes room for it: to be closed
  };
  // Finds a place for a connection from `address`. One thread at a time calls Arrive and Add.
  Arrival Arrive(const std::string& address);
  void Add(const std::shared_ptr<Connection>& connection, const std::string& address);
  // Takes the connection that would make room for a newcomer; null when none may go.
  std::shared_ptr<Connection> EvictOne();

  enum class Standing { kSilent, kIdle, kBusy };
  // `keyed`: it has shown a key.
  void Set(const Connection* connection, Standing standing, bool keyed);
  void Remove(const Connection* connection);

  // How long a newcomer may take to its first byte now.
  std::chrono::milliseconds FirstByteTime(std::chrono::milliseconds most) const;
  int64_t size() const;
  int64_t evicted() const;
  std::vector<std::shared_ptr<Connection>> All() const;
  // False when connections are left after `limit`.
  bool WaitUntilEmpty(std::chrono::milliseconds limit);

 private:
  struct Entry {
    const Connection* key;
    std::weak_ptr<Connection> connection;
    std::string address;
    Standing standing = Standing::kSilent;
    bool keyed = false;
    bool leaving = false;  // evicted, and not closed yet
  };
  using Entries = std::list<Entry>;  // of one standing, the oldest first

  Entries& ListOf(Standing standing);
  int64_t Staying() const { return static_cast<int64_t>(entries_.size()) - leaving_; }
  // The oldest that may go, of `address` or, where that is empty, of all.
  std::shared_ptr<Connection> Evict(const std::string& address);

  const Limits limits_;
  mutable std::mutex mutex_;
  std::condition_variable empty_;
  Entries silent_, idle_, busy_;
  std::unordered_map<const Connection*, Entries::iterator> entries_;
  std::unordered_map<std::string, int> by_address_;  // those that are not leaving
  int64_t leaving_ = 0, evicted_ = 0;
};

}  // namespace loopspec::serve
