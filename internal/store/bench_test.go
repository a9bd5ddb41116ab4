package store

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// BenchmarkCommit measures recorded calls (an intent and a result of 4 KB each, every
// one synced to the disk) with many callers at once: "grouped" as the store does it,
// "alone" with a transaction and a sync for each write.
func BenchmarkCommit(b *testing.B) {
	for _, mode := range []string{"grouped", "alone"} {
		for _, callers := range []int{1, 32, 128} {
			b.Run(fmt.Sprintf("%s/%d", mode, callers), func(b *testing.B) {
				s := openAt(b, filepath.Join(b.TempDir(), "bench.db"), hooks{})
				var one sync.Mutex
				do := func(write func() error) {
					if mode == "alone" {
						one.Lock()
						defer one.Unlock()
					}
					if err := write(); err != nil {
						b.Error(err)
					}
				}
				body := noise(4000)
				var n atomic.Int64
				var wg sync.WaitGroup
				b.ResetTimer()
				for range callers {
					wg.Go(func() {
						for i := n.Add(1); i <= int64(b.N); i = n.Add(1) {
							v := call(fmt.Sprint(i))
							v.Request = Pack(body)
							r := result("answer")
							r.Raw = Pack(body)
							do(func() error { return s.Begin(context.Background(), v) })
							do(func() error { return s.Commit(context.Background(), key, v.ID, r) })
						}
					})
				}
				wg.Wait()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
			})
		}
	}
}

// BenchmarkCalls measures reading calls with their contents.
// Each model call asks for its session before it is sent.
func BenchmarkSession(b *testing.B) {
	s, err := Open(b.Context(), Config{Path: filepath.Join(b.TempDir(), "roundhouse.db")})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	if err := s.SaveSession(b.Context(), Session{SessionKey: key, Created: time.Now(), LastActivity: time.Now()}); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := s.Session(b.Context(), key.Principal, key.ID); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCalls(b *testing.B) {
	s := openAt(b, filepath.Join(b.TempDir(), "bench.db"), hooks{pragmas: noSync})
	body := noise(4000)
	for i := range 500 {
		v := call(fmt.Sprint(i))
		v.Request = Pack(body)
		if err := s.Begin(b.Context(), v); err != nil {
			b.Fatal(err)
		}
		if err := s.Commit(b.Context(), key, v.ID, result("answer")); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		for _, err := range s.Calls(b.Context(), CallFilter{Session: Of(key)}) {
			if err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(500*float64(b.N)/b.Elapsed().Seconds(), "calls/s")
}
