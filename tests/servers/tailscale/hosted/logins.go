package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"reflect"
	"sync"
	"unsafe"

	"tailscale.com/tailcfg"
	"tailscale.com/types/key"
)

// commonUser is the id of the user of all nodes that have none of their own; those of others follow.
const commonUser = 1000

// addLogin gives the node of this host name, which joins later, to a user of its own.
func (a *api) addLogin(hostname, name string) {
	a.lab.logins[hostname] = tailcfg.Login{ID: tailcfg.LoginID(commonUser + 1 + len(a.lab.logins)), LoginName: name, DisplayName: name}
}

// nameLogin gives a node that registers its login before testcontrol does, which has one of a constant name and domain. The real control
// server gives a tagged node the login of its own name, from which the Tailscale operator reads the domain of Tailscale Services. testcontrol
// has the logins in fields that it does not export. No request is refused.
func (a *api) nameLogin(r *http.Request) (status int, retryAfter, message string) {
	if r.URL.Path != "/machine/register" {
		return 0, "", ""
	}
	var request tailcfg.RegisterRequest
	body, err := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	if err != nil || json.Unmarshal(body, &request) != nil || request.Hostinfo == nil {
		return 0, "", "" // testcontrol refuses what it cannot read.
	}
	a.mu.Lock()
	login, isOwn := a.lab.logins[request.Hostinfo.Hostname]
	a.mu.Unlock()
	if !isOwn {
		name := "node." + a.tailnet.MagicDNSDomain
		login = tailcfg.Login{ID: commonUser, LoginName: name, DisplayName: name}
	}
	server := reflect.ValueOf(a.tailnet).Elem()
	mu := (*sync.Mutex)(field(server, "mu"))
	mu.Lock()
	defer mu.Unlock()
	if users := (*map[key.NodePublic]*tailcfg.User)(field(server, "users")); put(users, request.NodeKey, &tailcfg.User{
		ID: tailcfg.UserID(login.ID), DisplayName: login.DisplayName,
	}) {
		put((*map[key.NodePublic]*tailcfg.Login)(field(server, "logins")), request.NodeKey, &login)
	}
	return 0, "", ""
}

func field(server reflect.Value, name string) unsafe.Pointer {
	return unsafe.Pointer(server.FieldByName(name).UnsafeAddr())
}

// put adds a value unless the key has one, and reports whether it did.
func put[V any](all *map[key.NodePublic]V, of key.NodePublic, value V) bool {
	if *all == nil {
		*all = map[key.NodePublic]V{}
	}
	if _, exists := (*all)[of]; exists {
		return false
	}
	(*all)[of] = value
	return true
}
