package main

import (
	"reflect"
	"sync"
	"unsafe"

	"tailscale.com/tailcfg"
	"tailscale.com/types/key"
)

// firstUser is the id of the first user whose node is not one of the tailnet's common user.
const firstUser = 1000

// addLogin gives the node of this host name, which may join later, to a user of its own.
func (a *api) addLogin(hostname, name string) {
	a.lab.logins[hostname] = tailcfg.Login{ID: tailcfg.LoginID(firstUser + len(a.lab.logins)), LoginName: name, DisplayName: name}
}

// nameLogins gives all logins a name in the tailnet's domain, except those that a test has named. The real control server gives a tagged
// node the login of its own name, from which the Tailscale operator reads the domain of the Ingresses of a ProxyGroup. testcontrol has the
// logins, with a constant name, in fields that it does not export.
func (a *api) nameLogins() {
	server := reflect.ValueOf(a.tailnet).Elem()
	mu := (*sync.Mutex)(field(server, "mu"))
	logins := (*map[key.NodePublic]*tailcfg.Login)(field(server, "logins"))
	users := (*map[key.NodePublic]*tailcfg.User)(field(server, "users"))
	nodes := (*map[key.NodePublic]*tailcfg.Node)(field(server, "nodes"))
	mu.Lock()
	defer mu.Unlock()
	for id, login := range *logins {
		node := (*nodes)[id]
		if login == nil || node == nil {
			continue
		}
		named, isOwn := a.lab.logins[node.Hostinfo.Hostname()]
		if !isOwn {
			named = *login // Another goroutine may read the former one.
			named.LoginName = "node." + a.tailnet.MagicDNSDomain
		}
		if named.LoginName == login.LoginName {
			continue
		}
		(*logins)[id] = &named
		if isOwn {
			owned := node.Clone()
			owned.User = tailcfg.UserID(named.ID)
			(*nodes)[id], (*users)[id] = owned, &tailcfg.User{ID: owned.User, DisplayName: named.DisplayName}
		}
	}
}

func field(server reflect.Value, name string) unsafe.Pointer {
	return unsafe.Pointer(server.FieldByName(name).UnsafeAddr())
}
