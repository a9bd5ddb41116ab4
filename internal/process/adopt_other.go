//go:build !linux

package process

// adopt does nothing: only containers have a first process that is no system's own.
func (m *Manager) adopt() (end func()) { return func() {} }
