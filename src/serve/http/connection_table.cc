#include "serve/http/connection_table.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "serve/http/connection.h"

namespace loopspec::serve {

std::string NetworkOf(asio::ip::address address) {
  if (address.is_v6() && address.to_v6().is_v4_mapped())
    address = asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6());
  if (address.is_v4()) return address.to_string();
  auto bytes = address.to_v6().to_bytes();
  std::fill(bytes.begin() + 8, bytes.end(), static_cast<unsigned char>(0));
  return asio::ip::make_address_v6(bytes).to_string() + "/64";
}

std::chrono::milliseconds FirstByteTime(int64_t open, int64_t limit,
                                        std::chrono::milliseconds most) {
  const int64_t beyond_half = std::clamp<int64_t>(2 * open - limit, 0, limit);
  return most - most * 9 * beyond_half / (10 * limit);
}

ConnectionTable::Limits ConnectionTable::MakeLimits(int connections, int per_address,
                                                    const std::vector<std::string>& exempt) {
  Limits limits;
  limits.connections = connections;
  limits.per_address =
      per_address > 0 ? per_address : std::min(connections, std::max(32, connections / 4));
  limits.reserve = std::clamp(connections / 8, 2, 128);
  for (const std::string& text : exempt) {
    boost::system::error_code error;
    const asio::ip::address address = asio::ip::make_address(text, error);
    if (error) Fail("the trusted proxy is {}, expected an address such as 192.0.2.1", text);
    limits.exempt.insert(NetworkOf(address));
  }
  return limits;
}

ConnectionTable::Entries& ConnectionTable::ListOf(Standing standing) {
  return standing == Standing::kSilent ? silent_ : standing == Standing::kIdle ? idle_ : busy_;
}

std::shared_ptr<Connection> ConnectionTable::Evict(const std::string& address) {
  for (Entries* list : {&silent_, &idle_}) {
    for (Entry& entry : *list) {
      if (entry.leaving || (!address.empty() && entry.address != address)) continue;
      if (list == &idle_ && entry.keyed) continue;
      std::shared_ptr<Connection> connection = entry.connection.lock();
      if (connection == nullptr) continue;  // about to be removed
      entry.leaving = true;
      ++leaving_;
      ++evicted_;
      --by_address_[entry.address];
      return connection;
    }
  }
  return nullptr;
}

ConnectionTable::Arrival ConnectionTable::Arrive(const std::string& address) {
  const std::lock_guard lock(mutex_);
  Arrival arrival;
  const auto found = by_address_.find(address);
  const int held = found == by_address_.end() ? 0 : found->second;
  const bool address_full = !limits_.exempt.contains(address) && held >= limits_.per_address;
  // An address that has its part gets room from its own connections alone.
  if (address_full || Staying() >= limits_.connections)
    arrival.evicted = Evict(address_full ? address : std::string());
  const bool room = arrival.evicted ? Staying() < limits_.connections
                                    : !address_full && Staying() < limits_.connections;
  arrival.place = room                                                ? Place::kTable
                  : Staying() < limits_.connections + limits_.reserve ? Place::kReserve
                                                                      : Place::kNone;
  return arrival;
}

void ConnectionTable::Add(const std::shared_ptr<Connection>& connection,
                          const std::string& address) {
  const std::lock_guard lock(mutex_);
  silent_.push_back({connection.get(), connection, address});
  entries_.emplace(connection.get(), std::prev(silent_.end()));
  ++by_address_[address];
}

std::shared_ptr<Connection> ConnectionTable::EvictOne() {
  const std::lock_guard lock(mutex_);
  return Evict({});
}

void ConnectionTable::Set(const Connection* connection, Standing standing, bool keyed) {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(connection);
  if (found == entries_.end()) return;
  const Entries::iterator at = found->second;
  if (at->leaving) {  // its request came first: it stays
    at->leaving = false;
    --leaving_;
    --evicted_;
    ++by_address_[at->address];
  }
  Entries& to = ListOf(standing);
  to.splice(to.end(), ListOf(at->standing), at);
  at->standing = standing;
  at->keyed = at->keyed || keyed;
}

void ConnectionTable::Remove(const Connection* connection) {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(connection);
  if (found == entries_.end()) return;
  const Entries::iterator at = found->second;
  if (at->leaving)
    --leaving_;
  else
    --by_address_[at->address];
  if (by_address_[at->address] == 0) by_address_.erase(at->address);
  ListOf(at->standing).erase(at);
  entries_.erase(found);
  if (entries_.empty()) empty_.notify_all();
}

std::chrono::milliseconds ConnectionTable::FirstByteTime(std::chrono::milliseconds most) const {
  const std::lock_guard lock(mutex_);
  return serve::FirstByteTime(Staying(), limits_.connections, most);
}

int64_t ConnectionTable::size() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(entries_.size());
}

int64_t ConnectionTable::evicted() const {
  const std::lock_guard lock(mutex_);
  return evicted_;
}

std::vector<std::shared_ptr<Connection>> ConnectionTable::All() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Connection>> alive;
  for (const auto& [key, at] : entries_) {
    if (auto held = at->connection.lock()) alive.push_back(std::move(held));
  }
  return alive;
}

bool ConnectionTable::WaitUntilEmpty(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  return empty_.wait_for(lock, limit, [&] { return entries_.empty(); });
}

}  // namespace loopspec::serve
