// SPDX-License-Identifier: BSD-3-Clause
// LogicalClock: plays what ranks do on a logical clock. Schedules of passes (simulate) and the entries of
// whole steps (PlayedStep) are played by it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mylos {

/// What a lane does next. A lane is a rank, or stands for ranks that do the same.
struct ClockItem {
  enum class Kind : std::uint8_t {
    work,  ///< computes for `seconds`, after the end of event `awaits`, and then posts event `posts`
    post,  ///< takes its side in an event, and goes on
    wait,  ///< waits for the end of an event
  };
  Kind kind = Kind::work;
  double seconds = 0.0;  ///< of work
  double host = 0.0;     ///< seconds that the host takes to queue it; the host does not wait for the lane
  int event = -1;        ///< that is posted or waited for
  int awaits = -1;       ///< of work; -1: none
  int posts = -1;
};

/// A collective, a message, or anything else that lanes wait for.
struct ClockEvent {
  /// The lanes that post it before it begins. 0: it is of one lane, which stands for all ranks that call it;
  /// it then shares the lane's time with computation (ClockSlowdown).
  int sides = 1;
  /// It occupies this link for `seconds`, after those that were complete before it; -1: no other event waits
  /// for it. Events of one lane count links by themselves.
  int link = -1;
  double seconds = 0.0;
  double latency = 0.0;  ///< from the end on its link to the arrival of its result
};

/// By what factor each becomes slower while a lane computes and an event of its own is under way.
struct ClockSlowdown {
  double computation = 1.0;
  double communication = 1.0;
};

/// The items of all lanes, in order.
class ClockSource {
 public:
  virtual ~ClockSource() = default;
  /// The next item of a lane, or null at its end. Called again when that item is done.
  virtual const ClockItem* next(std::size_t lane) = 0;
  /// The item that `next` has given is done: a wait, or work after what it has awaited, from `begin` to
  /// `end`.
  virtual void done(std::size_t lane, const ClockItem& item, double begin, double end) = 0;
};

class LogicalClock {
 public:
  LogicalClock(std::size_t lanes, std::size_t links, ClockSlowdown slowdown = {});

  int add(const ClockEvent& event);
  /// Makes room for as many events.
  void reserve(std::size_t events) { events_.reserve(events); }
  /// Plays all lanes until none goes on. May be called again if the source has more items.
  void play(ClockSource& source);

  double now(std::size_t lane) const { return lanes_[lane].now; }
  /// Whether a lane waits for an event that no other lane will complete.
  bool is_stuck(std::size_t lane) const { return lanes_[lane].item != nullptr; }

 private:
  static constexpr double never = -1.0;
  struct Event {
    ClockEvent plan;
    int posted = 0;      // sides
    double begin = 0.0;  // the latest post so far
    double end = never;  // when the result is there
    int waiting = -1;    // lane, the first of a list
  };
  /// An event of one lane under way on its link.
  struct Running {
    int event = -1;
    double left = 0.0;  // seconds
  };
  struct Lane {
    const ClockItem* item = nullptr;  // that is not done
    double begin = 0.0;               // of the wait
    double now = 0.0;
    double host = 0.0;
    bool is_awake = false;
    int next_waiting = -1;                        // for the same event
    std::vector<std::vector<Running>> running{};  // by link, in order
  };

  void play(std::size_t lane, ClockSource& source);
  bool advance(std::size_t number, const ClockItem& item);
  /// Whether an event has ended: the lane then goes on at its end. Otherwise the event will wake it.
  bool wait_for(std::size_t number, int event);
  void post(std::size_t number, int event);
  void finish(Event& event, double end);
  void wake(std::size_t lane);
  /// Lets time pass for a lane and the events of its own: up to `most` seconds, or until one of them ends.
  /// Returns the seconds.
  double pass(Lane& lane, double most, double slower);
  void idle_until(Lane& lane, double time);

  ClockSlowdown slowdown_;
  std::vector<Event> events_;
  std::vector<double> link_free_;
  std::vector<Lane> lanes_;
  std::vector<std::size_t> awake_;
};

}  // namespace mylos
