package process

import "time"

// Info is one live process.
type Info struct {
	PID, PPID int
	Name      string        // of the command, as short as the system keeps it
	Start     time.Time     // precise to the clock tick of the process table
	CPU       time.Duration // time that it has run so far, in user and kernel; Linux only, else 0
	RSS       int64         // bytes of memory that are resident; Linux only, else 0
}

// View is what lives at one moment. The zero value is nothing.
type View struct {
	// Self is this process; on Windows only its PID is known.
	Self Info
	// Trees are those of all servers that have been started and are not gone.
	Trees map[*Process]Tree
	// Others are further processes below this one, on Linux only: mostly the reapers of
	// servers that are being started.
	Others []Info
}

// Tree is what lives of one server.
type Tree struct {
	Reaper  *Info  // our own process between this one and the server; nil where there is none
	Members []Info // the server, if it lives, and its descendants, parents before children
}

// View reads the process table, once for all servers, which takes milliseconds. Of one
// tree it has at most 4096 processes and 64 generations (P3). What cannot be read is left
// out.
func (m *Manager) View() View {
	m.mu.Lock()
	var started []*Process
	for p, ok := range m.live {
		if ok {
			started = append(started, p)
		}
	}
	m.mu.Unlock()
	return look(started)
}
