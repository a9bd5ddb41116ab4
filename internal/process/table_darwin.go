package process

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// statusZombie is SZOMB of the system's process states.
const statusZombie = 5

// readTable reads the process table once.
func readTable() (table, error) {
	list, err := unix.SysctlKinfoProcSlice("kern.proc.all")
	if err != nil {
		return nil, fmt.Errorf("read the process table: %w", err)
	}
	t := make(table, 0, len(list))
	for i := range list {
		t = append(t, toEntry(&list[i]))
	}
	return t, nil
}

// readEntry reads one process.
func readEntry(pid int) (entry, error) {
	k, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	if err != nil {
		return entry{}, err
	}
	if int(k.Proc.P_pid) != pid {
		return entry{}, os.ErrProcessDone
	}
	return toEntry(k), nil
}

func toEntry(k *unix.KinfoProc) entry {
	name, _, _ := bytes.Cut(k.Proc.P_comm[:], []byte{0})
	e := entry{
		pid: int(k.Proc.P_pid), parent: int(k.Eproc.Ppid), group: int(k.Eproc.Pgid),
		start: uint64(k.Proc.P_starttime.Sec)*1e6 + uint64(k.Proc.P_starttime.Usec),
		name:  string(name), zombie: k.Proc.P_stat == statusZombie,
	}
	e.session, _ = unix.Getsid(e.pid) // 0 for another user's process.
	return e
}

// wallTime converts a start time of the table.
func wallTime(start uint64) time.Time { return time.UnixMicro(int64(start)) }

// environ reads the environment that a process was executed with. It is nil where
// we may not read it.
func environ(pid int) [][]byte {
	// The number of arguments, the executable, padding, arguments, environment.
	b, err := unix.SysctlRaw("kern.procargs2", pid)
	if err != nil || len(b) < 4 {
		return nil
	}
	skip := int(binary.NativeEndian.Uint32(b))
	_, b, _ = bytes.Cut(b[4:], []byte{0})
	parts := bytes.Split(bytes.TrimLeft(b, "\x00"), []byte{0})
	return parts[min(max(skip, 0), len(parts)):]
}
