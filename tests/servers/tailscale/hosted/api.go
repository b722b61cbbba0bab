package main

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"tailscale.com/tailcfg"
	"tailscale.com/tstest/integration/testcontrol"
	"tailscale.com/types/key"
)

// tokenLeeway is the time after its expiry in which an access token is still accepted.
const tokenLeeway = 10 * time.Second

// api is what operators ask. Its paths, statuses and fields are the published ones.
type api struct {
	tailnet        *testcontrol.Server
	client, secret string

	mu       sync.Mutex
	made     int
	tokens   map[string]time.Time // until when
	keys     map[string]keyInfo   // by id
	unused   []string             // ids of keys that no node has joined with, oldest first
	keyTags  map[string][]string  // by id, also of those that are revoked
	newest   []string             // tags of the newest key
	gone     map[key.NodePublic]bool
	expired  map[key.NodePublic]bool
	joined   map[key.NodePublic]joining
	services map[string]service
	refused  map[string]bool // service and node
	enabled  map[tailcfg.StableNodeID][]netip.Prefix

	lab lab
}

type keyInfo struct {
	ID           string          `json:"id"`
	Key          string          `json:"key,omitempty"`
	Description  string          `json:"description"`
	Created      time.Time       `json:"created"`
	Expires      time.Time       `json:"expires"`
	Capabilities json.RawMessage `json:"capabilities"`
}

// joining is what testcontrol does not record of a node.
type joining struct {
	at   time.Time
	tags []string
}

type device struct {
	ID         string   `json:"id"`
	NodeID     string   `json:"nodeId"`
	Name       string   `json:"name"`
	Hostname   string   `json:"hostname"`
	Addresses  []string `json:"addresses"`
	Tags       []string `json:"tags"`
	Authorized bool     `json:"authorized"`
	Created    string   `json:"created"` // RFC 3339 in whole seconds
}

type service struct {
	Name        string            `json:"name"`
	Addrs       []string          `json:"addrs,omitempty"`
	Comment     string            `json:"comment,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Ports       []string          `json:"ports,omitempty"`
	Tags        []string          `json:"tags,omitempty"`
}

func newAPI(tailnet *testcontrol.Server, client, secret string) *api {
	return &api{
		tailnet: tailnet, client: client, secret: secret,
		tokens: map[string]time.Time{}, keys: map[string]keyInfo{}, gone: map[key.NodePublic]bool{}, joined: map[key.NodePublic]joining{}, keyTags: map[string][]string{},
		expired: map[key.NodePublic]bool{}, services: map[string]service{}, refused: map[string]bool{}, enabled: map[tailcfg.StableNodeID][]netip.Prefix{},
		lab: newLab(),
	}
}

func (a *api) handler() http.Handler {
	mux := http.NewServeMux()
	on := func(pattern string, serve func(http.ResponseWriter, *http.Request)) {
		method, path, _ := strings.Cut(pattern, " ")
		mux.HandleFunc(method+" /api/v2"+path, func(w http.ResponseWriter, r *http.Request) {
			a.mu.Lock()
			defer a.mu.Unlock()
			if !strings.HasPrefix(path, "/oauth/") && !a.known(r) {
				refuse(w, http.StatusUnauthorized, "unauthorized")
				return
			}
			if tailnet := r.PathValue("tailnet"); tailnet != "" && tailnet != "-" && tailnet != a.tailnet.MagicDNSDomain {
				refuse(w, http.StatusNotFound, "no such tailnet")
				return
			}
			serve(w, r)
		})
	}
	on("POST /oauth/token", a.logIn)
	on("POST /oauth/token-exchange", a.exchange)
	on("GET /tailnet/{tailnet}/keys", a.listKeys)
	on("POST /tailnet/{tailnet}/keys", a.makeKey)
	on("DELETE /tailnet/{tailnet}/keys/{id}", a.revokeKey)
	on("GET /tailnet/{tailnet}/devices", a.listDevices)
	on("GET /device/{id}", a.withDevice(func(w http.ResponseWriter, n *tailcfg.Node) { answer(w, a.deviceOf(n)) }))
	on("DELETE /device/{id}", a.withDevice(func(_ http.ResponseWriter, n *tailcfg.Node) { a.gone[n.Key] = true }))
	on("POST /device/{id}/expire", a.withDevice(a.expire))
	on("GET /device/{id}/routes", a.withDevice(func(w http.ResponseWriter, n *tailcfg.Node) { answer(w, a.routesOf(n)) }))
	on("POST /device/{id}/routes", a.approveRoutes)
	on("GET /tailnet/{tailnet}/vip-services", a.listServices)
	on("GET /tailnet/{tailnet}/vip-services/{name}", a.getService)
	on("PUT /tailnet/{tailnet}/vip-services/{name}", a.putService)
	on("DELETE /tailnet/{tailnet}/vip-services/{name}", a.deleteService)
	on("POST /tailnet/{tailnet}/services/{name}/device/{id}/approved", a.approve)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		log.Printf("%s %s: not found", r.Method, r.URL.Path)
		refuse(w, http.StatusNotFound, "not found")
	})
	return a.scripted(mux)
}

func (a *api) known(r *http.Request) bool {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return ok && time.Now().Before(a.tokens[token])
}

func (a *api) logIn(w http.ResponseWriter, r *http.Request) {
	client, secret, basic := r.BasicAuth()
	if !basic {
		client, secret = r.FormValue("client_id"), r.FormValue("client_secret")
	}
	if client != a.client || secret != a.secret {
		refuse(w, http.StatusUnauthorized, "API token invalid")
		return
	}
	a.issueToken(w)
}

// exchange gives an access token for the identity token of a service account.
func (a *api) exchange(w http.ResponseWriter, r *http.Request) {
	if r.FormValue("client_id") != a.client || a.lab.jwt == "" || r.FormValue("jwt") != a.lab.jwt {
		refuse(w, http.StatusUnauthorized, "API token invalid")
		return
	}
	a.issueToken(w)
}

func (a *api) issueToken(w http.ResponseWriter) {
	a.made++
	token := fmt.Sprintf("tskey-api-%d", a.made)
	a.tokens[token] = time.Now().Add(a.lab.tokenLife + tokenLeeway)
	answer(w, map[string]any{
		"access_token": token, "token_type": "Bearer", "expires_in": int(a.lab.tokenLife.Seconds()), "scope": "all",
	})
}

func (a *api) listKeys(w http.ResponseWriter, _ *http.Request) {
	list := slices.Collect(maps.Values(a.keys))
	for i := range list {
		list[i].Key = "" // It is shown once.
	}
	answer(w, map[string]any{"keys": append([]keyInfo{}, list...)})
}

func (a *api) makeKey(w http.ResponseWriter, r *http.Request) {
	var wanted struct {
		Capabilities  json.RawMessage `json:"capabilities"`
		Description   string          `json:"description"`
		ExpirySeconds int64           `json:"expirySeconds"`
	}
	var create struct {
		Devices struct {
			Create struct {
				Tags []string `json:"tags"`
			} `json:"create"`
		} `json:"devices"`
	}
	body, err := io.ReadAll(r.Body)
	if err != nil || json.Unmarshal(body, &wanted) != nil || json.Unmarshal(wanted.Capabilities, &create) != nil {
		refuse(w, http.StatusBadRequest, "invalid body")
		return
	}
	if len(create.Devices.Create.Tags) == 0 {
		refuse(w, http.StatusBadRequest, "requested tags [] are invalid or not permitted")
		return
	}
	life := 90 * 24 * time.Hour
	if wanted.ExpirySeconds > 0 {
		life = time.Duration(wanted.ExpirySeconds) * time.Second
	}
	a.made++
	now := time.Now().UTC().Truncate(time.Second)
	id := fmt.Sprintf("k%dCNTRL", a.made)
	made := keyInfo{
		ID: id, Key: "tskey-auth-" + id + "-secret", Description: wanted.Description,
		Created: now, Expires: now.Add(life), Capabilities: wanted.Capabilities,
	}
	a.keys[made.ID] = made
	a.keyTags[id] = create.Devices.Create.Tags
	a.newest = create.Devices.Create.Tags
	a.unused = append(a.unused, id)
	a.lab.keyRequests = append(a.lab.keyRequests, body)
	answer(w, made)
}

func (a *api) revokeKey(w http.ResponseWriter, r *http.Request) {
	a.unused = slices.DeleteFunc(a.unused, func(id string) bool { return id == r.PathValue("id") })
	remove(w, a.keys, r.PathValue("id"), "not found")
}

// remove takes out what has a key, or answers that it is not there.
func remove[T any](w http.ResponseWriter, all map[string]T, key, absent string) {
	if _, ok := all[key]; !ok {
		refuse(w, http.StatusNotFound, absent)
		return
	}
	delete(all, key)
}

func (a *api) listDevices(w http.ResponseWriter, _ *http.Request) {
	devices := []device{}
	for _, node := range a.nodes() {
		devices = append(devices, a.deviceOf(node))
	}
	answer(w, map[string]any{"devices": devices})
}

// nodes returns the nodes of the tailnet that were not deleted, those that only the lab added among them. A node whose key was
// replaced is there once, with its newest.
func (a *api) nodes() []*tailcfg.Node {
	newest := map[tailcfg.StableNodeID]*tailcfg.Node{}
	for _, node := range append(a.tailnet.AllNodes(), a.lab.nodes...) {
		if other := newest[node.StableID]; !a.gone[node.Key] && (other == nil || a.expired[other.Key]) {
			newest[node.StableID] = node
		}
	}
	sorted := slices.SortedFunc(maps.Values(newest), func(a, b *tailcfg.Node) int { return int(a.ID - b.ID) })
	for _, node := range sorted {
		a.identify(node)
	}
	return sorted
}

// identify remembers when a node joined, and with which tags, at its first sight. testcontrol does not report with which auth key a node
// joined: it counts as the oldest that is not used, whose tags it has. A client of a test that joins with the tailnet's own key may have
// taken that one: the node then has the tags of the newest key. A node that joins again with another auth key has a new time.
func (a *api) identify(node *tailcfg.Node) {
	if _, known := a.joined[node.Key]; known {
		return
	}
	made := joining{at: time.Now(), tags: node.Tags}
	if len(made.tags) == 0 {
		made.tags = a.newest
		if len(a.unused) > 0 {
			made.tags, a.unused = a.keyTags[a.unused[0]], a.unused[1:]
		}
	}
	a.joined[node.Key] = made
}

func (a *api) withDevice(serve func(http.ResponseWriter, *tailcfg.Node)) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, r *http.Request) {
		for _, node := range a.nodes() {
			if id := r.PathValue("id"); id == string(node.StableID) || id == fmt.Sprint(int64(node.ID)) {
				serve(w, node)
				return
			}
		}
		refuse(w, http.StatusNotFound, "no such device")
	}
}

// expire ends a node's key: it has to log in again.
func (a *api) expire(_ http.ResponseWriter, node *tailcfg.Node) {
	a.expired[node.Key] = true
	node.KeyExpiry = time.Now().Add(-time.Minute)
	a.tailnet.UpdateNode(node)
}

// renew is called when a node requests its map. One that logged in with another key than the one that ended has that key's
// time, which testcontrol copies, and is alive. testcontrol keeps the node of the old key beside it, with the same identity and
// addresses, and lists both to peers in any order: the old one loses them here, as peers would send to it otherwise.
func (a *api) renew(r *tailcfg.MapRequest) (done func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	node := a.tailnet.Node(r.NodeKey)
	if node == nil || a.expired[r.NodeKey] || node.KeyExpiry.IsZero() {
		return nil
	}
	for _, old := range a.tailnet.AllNodes() {
		if old.StableID == node.StableID && old.Key != node.Key {
			a.retire(old)
		}
	}
	node.KeyExpiry = time.Time{}
	a.tailnet.UpdateNode(node)
	return nil
}

// retire leaves nothing of a node but its key: no device lists it, and no peer sends to it.
func (a *api) retire(node *tailcfg.Node) {
	a.gone[node.Key] = true
	id := tailcfg.NodeID(1<<20 + len(a.gone))
	a.tailnet.UpdateNode(&tailcfg.Node{
		ID: id, StableID: tailcfg.StableNodeID(fmt.Sprintf("RETIRED%d", id)), Key: node.Key, Machine: node.Machine, User: node.User,
		Hostinfo: node.Hostinfo,
	})
}

func (a *api) listServices(w http.ResponseWriter, _ *http.Request) {
	answer(w, map[string]any{"vipServices": append([]service{}, slices.Collect(maps.Values(a.services))...)})
}

func (a *api) getService(w http.ResponseWriter, r *http.Request) {
	found, ok := a.services[r.PathValue("name")]
	if !ok {
		refuse(w, http.StatusNotFound, "no such service")
		return
	}
	answer(w, found)
}

// putService creates a service with addresses of its own, or replaces it whole; an update has to repeat its addresses. A service cannot have
// the name of a device (https://github.com/tailscale/tailscale/issues/17693).
func (a *api) putService(w http.ResponseWriter, r *http.Request) {
	var wanted service
	if err := json.NewDecoder(r.Body).Decode(&wanted); err != nil {
		refuse(w, http.StatusBadRequest, "invalid body")
		return
	}
	if wanted.Name != r.PathValue("name") || len(wanted.Tags) == 0 {
		refuse(w, http.StatusBadRequest, "name and tags are required")
		return
	}
	if old, ok := a.services[wanted.Name]; !ok {
		label := strings.TrimPrefix(wanted.Name, "svc:") + "."
		if slices.ContainsFunc(a.nodes(), func(node *tailcfg.Node) bool { return strings.HasPrefix(node.Name, label) }) {
			refuse(w, http.StatusConflict, "name is in use but is not a service")
			return
		}
		a.made++
		four := netip.AddrFrom4([4]byte{100, 99, byte(a.made / 250), byte(a.made%250 + 1)})
		wanted.Addrs = []string{four.String(), fmt.Sprintf("fd7a:115c:a1e0::99:%x", a.made)}
		a.publish(wanted)
	} else if !slices.Equal(old.Addrs, wanted.Addrs) {
		refuse(w, http.StatusBadRequest, "addrs cannot be changed")
		return
	}
	a.services[wanted.Name] = wanted
	answer(w, wanted)
}

func (a *api) deleteService(w http.ResponseWriter, r *http.Request) {
	remove(w, a.services, r.PathValue("name"), "no such service")
}

// deviceOf describes a node.
func (a *api) deviceOf(node *tailcfg.Node) device {
	joined := a.joined[node.Key]
	return device{
		ID: fmt.Sprint(int64(node.ID)), NodeID: string(node.StableID), Name: strings.TrimSuffix(node.Name, "."),
		Hostname: node.Hostinfo.Hostname(), Addresses: addressesOf(node), Tags: append([]string{}, joined.tags...), Authorized: node.MachineAuthorized,
		Created: joined.at.UTC().Format(time.RFC3339),
	}
}

func addressesOf(node *tailcfg.Node) []string {
	addresses := []string{}
	for _, prefix := range node.Addresses {
		addresses = append(addresses, prefix.Addr().String())
	}
	return addresses
}

func answer(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(value); err != nil {
		log.Printf("an answer was not read: %v", err)
	}
}

func refuse(w http.ResponseWriter, status int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"message": message, "status": status})
}
