package main

import (
	"reflect"
	"sync"
	"unsafe"

	"tailscale.com/tailcfg"
	"tailscale.com/types/key"
)

// nameLogins gives all logins a name in the tailnet's domain. The real control server gives a tagged node the login of its own name, from
// which the Tailscale operator reads the domain of the Ingresses of a ProxyGroup. testcontrol has the logins, with a constant name, in
// fields that it does not export.
func (a *api) nameLogins() {
	server := reflect.ValueOf(a.tailnet).Elem()
	mu := (*sync.Mutex)(unsafe.Pointer(server.FieldByName("mu").UnsafeAddr()))
	logins := (*map[key.NodePublic]*tailcfg.Login)(unsafe.Pointer(server.FieldByName("logins").UnsafeAddr()))
	name := "node." + a.tailnet.MagicDNSDomain
	mu.Lock()
	defer mu.Unlock()
	for node, login := range *logins {
		if login != nil && login.LoginName != name {
			named := *login // Another goroutine may read the former one.
			named.LoginName = name
			(*logins)[node] = &named
		}
	}
}
