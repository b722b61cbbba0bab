package main

import (
	"encoding/json"
	"fmt"
	"log"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"tailscale.com/tailcfg"
	"tailscale.com/types/key"
)

// lab is the part of the state that no operator can see or change: records of requests, scripted faults, and what tests set by the
// endpoints under /lab/.
type lab struct {
	calls       []string          // method and path of each request to the API
	keyRequests []json.RawMessage // bodies of requests that created auth keys
	faults      []fault           // of the next requests, one each
	denied      map[string]int    // status of refusals by prefix of method and path
	tokenLife   time.Duration
	jwt         string          // the identity token that is exchanged for an access token; none if it is empty
	nodes       []*tailcfg.Node // nodes without a tailscaled
	grants      []grant
	granted     string                   // what nodes have of them
	logins      map[string]tailcfg.Login // of nodes that are users' own, by hostname
}

// fault is what happens to one request. Without a status, a cut or garbage it is served, late if it is slow.
type fault struct {
	Status       int  `json:"status"`
	RetryAfter   *int `json:"retryAfter"` // seconds, of the status
	Milliseconds int  `json:"milliseconds"`
	Cut          bool `json:"cut"`
	Garbage      bool `json:"garbage"`
}

func newLab() lab {
	return lab{calls: []string{}, keyRequests: []json.RawMessage{}, denied: map[string]int{}, tokenLife: time.Hour, logins: map[string]tailcfg.Login{}}
}

// labHandler serves the endpoints of tests: JSON bodies, and statuses as the API has them.
func (a *api) labHandler() http.Handler {
	mux := http.NewServeMux()
	on := func(pattern string, serve http.HandlerFunc) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			a.mu.Lock()
			defer a.mu.Unlock()
			serve(w, r)
		})
	}
	show := func(path string, value func() any) {
		on("GET "+path, func(w http.ResponseWriter, _ *http.Request) { answer(w, value()) })
	}
	show("/lab/calls", func() any { return a.lab.calls })
	show("/lab/key-requests", func() any { return a.lab.keyRequests })
	show("/lab/keys", func() any { return a.keySecrets() })
	show("/lab/devices", func() any { return a.deviceIDs() })
	show("/lab/addresses", func() any { return a.deviceAddresses() })
	show("/lab/services", func() any { return a.services })
	on("PUT /lab/devices/{id}", body(func(r *http.Request, hostname string) { a.addNode(r.PathValue("id"), hostname) }))
	on("PUT /lab/services/{name}", body(func(r *http.Request, made service) { a.services[r.PathValue("name")] = made }))
	on("PUT /lab/routes/{id}", body(func(r *http.Request, routes []netip.Prefix) {
		a.enabled[tailcfg.StableNodeID(r.PathValue("id"))] = routes
	}))
	on("POST /lab/faults", body(func(_ *http.Request, more []fault) { a.lab.faults = append(a.lab.faults, more...) }))
	on("POST /lab/denied", body(func(_ *http.Request, more map[string]int) { maps.Copy(a.lab.denied, more) }))
	on("DELETE /lab/denied", func(http.ResponseWriter, *http.Request) { clear(a.lab.denied) })
	on("PUT /lab/token-life", body(func(_ *http.Request, seconds int) { a.lab.tokenLife = time.Duration(seconds) * time.Second }))
	on("DELETE /lab/tokens", func(http.ResponseWriter, *http.Request) { clear(a.tokens) })
	on("PUT /lab/jwt", body(func(_ *http.Request, jwt string) { a.lab.jwt = jwt }))
	on("PUT /lab/cert-domains", body(a.setCertDomains))
	on("PUT /lab/grants", body(func(_ *http.Request, grants []grant) { a.lab.grants = grants }))
	on("PUT /lab/logins/{hostname}", body(func(r *http.Request, name string) { a.addLogin(r.PathValue("hostname"), name) }))
	return mux
}

// body is a handler for requests whose body is such a value.
func body[T any](take func(*http.Request, T)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var value T
		if err := json.NewDecoder(r.Body).Decode(&value); err != nil {
			refuse(w, http.StatusBadRequest, "invalid body")
			return
		}
		take(r, value)
	}
}

// keySecrets returns the secrets of the auth keys by their id.
func (a *api) keySecrets() map[string]string {
	secrets := map[string]string{}
	for id, info := range a.keys {
		secrets[id] = info.Key
	}
	return secrets
}

// deviceAddresses returns the addresses of the devices by their stable id.
func (a *api) deviceAddresses() map[string][]string {
	all := map[string][]string{}
	for _, node := range a.nodes() {
		all[string(node.StableID)] = addressesOf(node)
	}
	return all
}

func (a *api) deviceIDs() []string {
	ids := []string{}
	for _, node := range a.nodes() {
		ids = append(ids, string(node.StableID))
	}
	return ids
}

// addNode adds a device without a tailscaled: a test plays what it does elsewhere. One that is there already is renamed.
func (a *api) addNode(id, hostname string) {
	name, info := hostname+"."+a.tailnet.MagicDNSDomain+".", (&tailcfg.Hostinfo{Hostname: hostname}).View()
	for _, node := range a.lab.nodes {
		if string(node.StableID) == id && !a.gone[node.Key] {
			node.Name, node.Hostinfo = name, info
		}
	}
	if slices.Contains(a.deviceIDs(), id) {
		return
	}
	a.made++
	four := netip.AddrFrom4([4]byte{100, 100, byte(a.made / 250), byte(a.made%250 + 1)})
	six := netip.MustParseAddr(fmt.Sprintf("fd7a:115c:a1e0::100:%x", a.made))
	a.lab.nodes = append(a.lab.nodes, &tailcfg.Node{
		ID: tailcfg.NodeID(1_000_000 + a.made), StableID: tailcfg.StableNodeID(id), Name: name, Tags: []string{"tag:k8s"},
		Key: key.NewNode().Public(), Hostinfo: info, MachineAuthorized: true,
		Addresses: []netip.Prefix{netip.PrefixFrom(four, 32), netip.PrefixFrom(six, 128)},
	})
	a.nodes() // It has joined now.
}

// scripted records requests, fails those that tests have scripted, and passes all others on.
func (a *api) scripted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		call := r.Method + " " + r.URL.Path
		log.Print(call)
		status, fault := a.nextFault(call)
		if status != 0 {
			refuse(w, status, "not permitted")
			return
		}
		select {
		case <-time.After(time.Duration(fault.Milliseconds) * time.Millisecond):
		case <-r.Context().Done():
			return
		}
		switch {
		case fault.Cut:
			panic(http.ErrAbortHandler)
		case fault.Garbage:
			_, _ = w.Write([]byte("<html>"))
		case fault.Status != 0:
			if fault.RetryAfter != nil {
				w.Header().Set("Retry-After", strconv.Itoa(*fault.RetryAfter))
			}
			refuse(w, fault.Status, "as the test wants it")
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// nextFault records a call and returns the status with which its prefix is denied, if it is, and the fault that is its turn.
func (a *api) nextFault(call string) (denied int, next fault) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lab.calls = append(a.lab.calls, call)
	for prefix, status := range a.lab.denied {
		if strings.HasPrefix(call, prefix) {
			return status, fault{}
		}
	}
	if len(a.lab.faults) > 0 {
		next, a.lab.faults = a.lab.faults[0], a.lab.faults[1:]
	}
	return 0, next
}
