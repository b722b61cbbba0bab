package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"tailscale.com/tailcfg"
	"tailscale.com/types/key"
)

// host is what is known of a node that serves Tailscale Services.
type host struct {
	hash    string                // of what it told last
	tells   []*tailcfg.VIPService // what it told
	applied string                // what its map was made of
}

// serveServices plays the control plane's part for Tailscale Services: it sees that a node tells of other ones than before
// (Hostinfo.ServicesHash), asks it for them (c2n), approves the node for those that exist, and leads each service to one of the
// approved nodes that advertise it: the one that it leads to already, else that with the lowest id. A node learns what it is
// approved for by its capability service-host, whether it advertises it or not, as the published type has it.
func (a *api) serveServices() {
	hosts := map[key.NodePublic]*host{}
	primary := map[string]key.NodePublic{}
	for range time.Tick(50 * time.Millisecond) {
		a.mu.Lock()
		nodes := a.nodes()
		a.mu.Unlock()
		for _, node := range nodes {
			if hosts[node.Key] == nil {
				hosts[node.Key] = &host{}
			}
			a.listen(node, hosts[node.Key])
		}
		a.lead(nodes, hosts, primary)
	}
}

// listen asks a node for its services if it has others than it told last.
func (a *api) listen(node *tailcfg.Node, h *host) {
	hash := node.Hostinfo.ServicesHash()
	if hash == h.hash {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://unused/vip-services", nil)
	if err != nil {
		log.Fatal(err)
	}
	answer, err := a.tailnet.NodeRoundTripper(node.Key).RoundTrip(request)
	if err != nil {
		log.Printf("%s does not tell its services: %v", node.Name, err)
		return
	}
	var told tailcfg.C2NVIPServicesResponse
	if err := json.NewDecoder(answer.Body).Decode(&told); err != nil {
		log.Printf("%s tells its services badly: %v", node.Name, err)
		return
	}
	h.hash, h.tells = told.ServicesHash, told.VIPServices
}

// lead decides where services lead and tells every node whose part has changed.
func (a *api) lead(nodes []*tailcfg.Node, hosts map[key.NodePublic]*host, primary map[string]key.NodePublic) {
	a.mu.Lock()
	defer a.mu.Unlock()
	candidates := map[string][]key.NodePublic{}
	for _, node := range nodes {
		for _, told := range hosts[node.Key].tells {
			name := string(told.Name)
			if _, there := a.services[name]; there && told.Active && a.approved(name, node) {
				candidates[name] = append(candidates[name], node.Key)
			}
		}
	}
	for name := range primary {
		if !slices.Contains(candidates[name], primary[name]) {
			delete(primary, name)
		}
	}
	for name, keys := range candidates {
		if _, led := primary[name]; !led {
			primary[name] = keys[0]
		}
	}
	// Who loses a service is told first.
	for _, gains := range []bool{false, true} {
		for _, node := range nodes {
			h := hosts[node.Key]
			mappings, routes := a.part(node, h, primary)
			applied := fmt.Sprint(mappings, routes)
			if applied == h.applied || (h.applied == "" && len(mappings) == 0) || (len(routes) > 0) != gains {
				continue
			}
			h.applied = applied
			log.Printf("%s: approved for %v, led to by %v", node.Name, mappings, routes)
			a.tell(node, mappings, routes)
		}
	}
}

// part is what a node is approved for, and the addresses that lead to it.
func (a *api) part(node *tailcfg.Node, h *host, primary map[string]key.NodePublic) (tailcfg.ServiceIPMappings, []netip.Prefix) {
	mappings := tailcfg.ServiceIPMappings{}
	var routes []netip.Prefix
	for _, told := range h.tells {
		name := string(told.Name)
		service, there := a.services[name]
		if !there || !a.approved(name, node) {
			continue
		}
		for _, text := range service.Addrs {
			addr := netip.MustParseAddr(text)
			mappings[told.Name] = append(mappings[told.Name], addr)
			if primary[name] == node.Key {
				routes = append(routes, netip.PrefixFrom(addr, addr.BitLen()))
			}
		}
	}
	slices.SortFunc(routes, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	return mappings, routes
}

func (a *api) tell(node *tailcfg.Node, mappings tailcfg.ServiceIPMappings, routes []netip.Prefix) {
	caps := tailcfg.NodeCapMap{tailcfg.CapabilityHTTPS: nil}
	if len(mappings) > 0 {
		text, err := json.Marshal(mappings)
		if err != nil {
			log.Fatal(err)
		}
		caps[tailcfg.NodeAttrServiceHost] = []tailcfg.RawMessage{tailcfg.RawMessage(text)}
	}
	a.tailnet.SetNodeCapMap(node.Key, caps)
	a.tailnet.SetSubnetRoutes(node.Key, routes)
}

// approved is whether a node may serve a service: everybody who was not refused.
func (a *api) approved(service string, node *tailcfg.Node) bool {
	return !a.refused[service+" "+string(node.StableID)]
}

// approve is the API's way to approve a node for a service, or to take that back.
func (a *api) approve(w http.ResponseWriter, r *http.Request) {
	var wanted struct {
		Approved bool `json:"approved"`
	}
	if err := json.NewDecoder(r.Body).Decode(&wanted); err != nil {
		refuse(w, http.StatusBadRequest, "invalid body")
		return
	}
	a.refused[r.PathValue("name")+" "+r.PathValue("id")] = !wanted.Approved
	answer(w, map[string]any{"approved": wanted.Approved})
}

// publish tells every node a service's name.
func (a *api) publish(made service) {
	name := strings.TrimPrefix(made.Name, "svc:") + "." + a.tailnet.MagicDNSDomain
	a.tailnet.DNSConfig.CertDomains = append(a.tailnet.DNSConfig.CertDomains, name)
	records := []tailcfg.DNSRecord{}
	for _, addr := range made.Addrs {
		records = append(records, tailcfg.DNSRecord{Name: name, Value: addr})
	}
	a.tailnet.AddDNSRecords(records...)
}
