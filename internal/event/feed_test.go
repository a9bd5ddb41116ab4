package event

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func reasons(events []Event) (all []string) {
	for _, e := range events {
		all = append(all, e.Reason)
	}
	return all
}

// pool.md §9: who follows gets every event once, in order, with its time, and is woken
// when there is one.
func TestAFollowerGetsEveryEventOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := NewFeed()
		begun := time.Now()
		var got []Event
		var wg sync.WaitGroup
		wg.Go(func() {
			for after := uint64(0); len(got) < 30; {
				events, lost, more := f.After(after)
				if lost > 0 {
					t.Errorf("%d are lost", lost)
				}
				got = append(got, events...)
				if n := len(got); n > 0 {
					after = got[n-1].ID
				}
				if len(events) == 0 {
					<-more
				}
			}
		})
		for i := range 30 {
			f.Publish(Event{Kind: SessionBegun, Reason: fmt.Sprint(i)})
			if i%7 == 0 {
				time.Sleep(time.Second)
			}
		}
		wg.Wait()
		for i, e := range got {
			if e.ID != uint64(i+1) || e.Reason != fmt.Sprint(i) || e.Time.Sub(begun) > 5*time.Second || e.Time.Before(begun) {
				t.Errorf("event %d is %+v", i, e)
			}
		}
	})
}

// A slow follower holds up nobody, gets what is still kept, and learns how many events
// he has missed.
func TestASlowFollowerLearnsHowManyHeMissed(t *testing.T) {
	f := NewFeed()
	for i := range kept + 10 {
		f.Publish(Event{Reason: fmt.Sprint(i)})
	}
	for after, want := range map[uint64]uint64{0: 10, 3: 7, 9: 1, 10: 0, 11: 0, kept + 9: 0, kept + 10: 0} {
		events, lost, _ := f.After(after)
		if lost != want || uint64(len(events)) != kept+10-after-want {
			t.Errorf("after %d: %d events and %d lost", after, len(events), lost)
		}
		if len(events) > 0 && events[0].ID != after+want+1 {
			t.Errorf("after %d comes %d", after, events[0].ID)
		}
	}
}

// A mark names an event of its own feed only.
func TestMarks(t *testing.T) {
	f, other := NewFeed(), NewFeed()
	for _, x := range []*Feed{f, other} {
		x.Publish(Event{Reason: "one"})
		x.Publish(Event{Reason: "two"})
	}
	events, _, _ := f.After(0)
	id, ok := f.Find(f.Mark(events[0]))
	if rest, _, _ := f.After(id); !ok || !slices.Equal(reasons(rest), []string{"two"}) {
		t.Errorf("%v, %d: %v follow", ok, id, reasons(rest))
	}
	theirs, _, _ := other.After(0)
	for _, mark := range []string{"", "-", "1", f.run, f.run + "-", f.run + "-x", f.run + "-3", f.run + "--1", other.Mark(theirs[0])} {
		if id, ok := f.Find(mark); ok {
			t.Errorf("%q is taken for %d", mark, id)
		}
	}
}

// A nil feed is one in which nothing ever happens.
func TestANilFeedKeepsNothing(t *testing.T) {
	var f *Feed
	f.Publish(Event{})
	events, lost, more := f.After(0)
	_, ok := f.Find("x-1")
	if len(events) > 0 || lost > 0 || more != nil || ok || f.Last() != 0 {
		t.Error("something happened")
	}
}

// Many publish and follow at the same time: each follower's events and losses add up.
func TestManyPublishersAndFollowers(t *testing.T) {
	f := NewFeed()
	const publishers, each = 8, 2000
	var wg sync.WaitGroup
	for range publishers {
		wg.Go(func() {
			for range each {
				f.Publish(Event{Kind: SessionBegun})
			}
		})
	}
	for range 4 {
		wg.Go(func() {
			var after, seen uint64
			for seen < publishers*each {
				events, lost, more := f.After(after)
				seen += lost
				after += lost
				for _, e := range events {
					seen++
					if after++; e.ID != after {
						t.Errorf("%d follows %d", e.ID, after-1)
						return
					}
				}
				if len(events) == 0 {
					<-more
				}
			}
		})
	}
	wg.Wait()
}
