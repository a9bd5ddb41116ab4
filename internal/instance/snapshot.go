package instance

import (
	"cmp"
	"slices"
	"time"
)

// Info describes the instances of a server at one moment.
type Info struct {
	Server    string         `json:"server"`
	Retired   bool           `json:"retired,omitempty"` // its configuration was replaced, and these end
	Min       int            `json:"min"`
	Max       int            `json:"max"`
	Starting  int            `json:"starting"`
	Warm      int            `json:"warm"`
	Leased    int            `json:"leased"`
	Instances []InstanceInfo `json:"instances"` // in the order of their starts
	Waiting   []WaiterInfo   `json:"waiting"`   // who waits longest first
	LastError string         `json:"lastError,omitempty"`
}

// InstanceInfo describes an instance.
type InstanceInfo struct {
	ID         string    `json:"id"`
	Index      int       `json:"index"`
	State      State     `json:"state"`
	CreatedAt  time.Time `json:"createdAt"`
	Since      time.Time `json:"since"` // of its state
	AgeMs      int64     `json:"ageMs"`
	Uses       int       `json:"uses"` // leases
	Connection string    `json:"connection,omitempty"`
	Principal  string    `json:"principal,omitempty"` // who has it
	Session    string    `json:"session,omitempty"`   // likewise
}

// WaiterInfo describes who waits for an instance.
type WaiterInfo struct {
	Principal string    `json:"principal"`
	Session   string    `json:"session"`
	Since     time.Time `json:"since"`
	WaitedMs  int64     `json:"waitedMs"`
}

// Snapshot describes the instances of all servers, by name. A principal sees the
// sessions of others only with admin. It blocks nothing.
func (p *Pools) Snapshot(principal string, admin bool) []Info {
	p.mu.Lock()
	defer p.mu.Unlock()
	infos := []Info{}
	for v := range p.eachLocked() {
		infos = append(infos, v.infoLocked(principal, admin))
	}
	slices.SortFunc(infos, func(a, b Info) int { return cmp.Compare(a.Server, b.Server) })
	return infos
}

func (v *server) infoLocked(principal string, admin bool) Info {
	c := v.conf.Instances
	i := Info{
		Server: v.name, Retired: v.refusal != nil, Min: c.Min, Max: c.Max, Starting: v.count(Starting), Warm: v.count(Warm), Leased: v.count(Leased),
		Instances: []InstanceInfo{}, Waiting: []WaiterInfo{},
	}
	if v.failure != nil {
		i.LastError = v.failure.Error()
	}
	for _, in := range v.all {
		x := InstanceInfo{ID: in.id, Index: in.index, State: in.state, CreatedAt: in.created, Since: in.since, AgeMs: time.Since(in.created).Milliseconds(), Uses: in.uses}
		if in.unit != nil {
			x.Connection = in.unit.Connection()
		}
		if admin || in.Principal == principal {
			x.Principal, x.Session = in.Principal, in.Session
		}
		i.Instances = append(i.Instances, x)
	}
	for _, w := range v.waiters {
		x := WaiterInfo{Since: w.since, WaitedMs: time.Since(w.since).Milliseconds()}
		if admin || w.Principal == principal {
			x.Principal, x.Session = w.Principal, w.Session
		}
		i.Waiting = append(i.Waiting, x)
	}
	return i
}
