package process

import (
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// adoptedLook is how often the first process of a container looks for the dead that
// nobody waits for.
const adoptedLook = time.Second

// adopt reaps the orphans that the system gives to the first process of a container: what
// a killed reaper left, and what others start in the container. Nobody else would, and
// dead processes keep their numbers until somebody does. The function that it returns
// ends that; where we are no first process there is nothing to do.
func (m *Manager) adopt() (end func()) {
	if os.Getpid() != 1 {
		return func() {}
	}
	over := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		ticker := time.NewTicker(adoptedLook)
		defer ticker.Stop()
		dead := map[int]uint64{}
		for {
			select {
			case <-ticker.C:
				dead = m.reapAdopted(dead)
			case <-over:
				return
			}
		}
	})
	return func() {
		close(over)
		wg.Wait()
	}
}

// reapAdopted reaps those of the dead that were dead at the last look, and returns those
// that are now, by pid with their start times. Who waits for a child of his own has long
// taken it by then, so that nobody loses an exit status; our reapers, which may be left
// dead for a while on purpose, are not touched.
func (m *Manager) reapAdopted(before map[int]uint64) map[int]uint64 {
	now := map[int]uint64{}
	for _, pid := range ownChildren() {
		e, err := readEntry(pid)
		if err != nil || !e.zombie || m.waitsFor(pid) {
			continue
		}
		if start, seen := before[pid]; seen && start == e.start {
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil) // the next look finds it if this failed
			continue
		}
		now[pid] = e.start
	}
	return now
}

// waitsFor reports whether pid is a reaper of ours that has not been waited for.
func (m *Manager) waitsFor(pid int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ours := m.reapers[pid]
	return ours
}

// own says that a reaper will be waited for, or no longer.
func (m *Manager) own(pid int, waits bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if waits {
		m.reapers[pid] = struct{}{}
	} else {
		delete(m.reapers, pid)
	}
}
