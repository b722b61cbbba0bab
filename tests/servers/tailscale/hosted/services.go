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

// funnelPorts are the ports that the real control server allows.
const funnelPorts = tailcfg.CapabilityFunnelPorts + "?ports=443,8443,10000"

// host is what is known of a node that serves Tailscale Services.
type host struct {
	hash       string                // of the services that it reported last
	advertises []*tailcfg.VIPService // the services that it reported
	applied    string                // what its map was made of
}

// serveServices is the control plane's part for Tailscale Services. A changed Hostinfo.ServicesHash shows that a node advertises other
// services: they are read from it (c2n), and the node is approved for those that exist. Each service gets one primary among the approved
// nodes that advertise it: the present one if it still does, else that with the lowest id. The capability service-host lists to a node
// what it is approved for, advertised or not, as the published type has it.
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
			a.readServices(node, hosts[node.Key])
			a.rename(node.Key)
		}
		a.route(nodes, hosts, primary)
		a.grant(nodes)
	}
}

// rename gives a node the name of its host after a change, as the real control server does unless an administrator chose another name.
func (a *api) rename(of key.NodePublic) {
	node := a.tailnet.Node(of)
	if node == nil || node.Hostinfo.Hostname() == "" {
		return
	}
	if name := node.Hostinfo.Hostname() + "." + a.tailnet.MagicDNSDomain + "."; node.Name != name {
		log.Printf("%s is now %s", node.Name, name)
		node.Name = name
		a.tailnet.UpdateNode(node)
	}
}

// readServices reads the services of a node if they have changed since it reported them last.
func (a *api) readServices(node *tailcfg.Node, h *host) {
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
		log.Printf("%s does not report its services: %v", node.Name, err)
		return
	}
	var reported tailcfg.C2NVIPServicesResponse
	if err := json.NewDecoder(answer.Body).Decode(&reported); err != nil {
		log.Printf("%s reports its services in an invalid form: %v", node.Name, err)
		return
	}
	h.hash, h.advertises = reported.ServicesHash, reported.VIPServices
}

// route selects the primary of each service and approved route, and updates every node whose routes or approvals have changed.
func (a *api) route(nodes []*tailcfg.Node, hosts map[key.NodePublic]*host, primary map[string]key.NodePublic) {
	a.mu.Lock()
	defer a.mu.Unlock()
	candidates := map[string][]key.NodePublic{}
	for _, node := range nodes {
		for _, service := range hosts[node.Key].advertises {
			name := string(service.Name)
			if _, exists := a.services[name]; exists && service.Active && a.approved(name, node) {
				candidates[name] = append(candidates[name], node.Key)
			}
		}
		for _, route := range a.approvedRoutes(node) {
			candidates[route.String()] = append(candidates[route.String()], node.Key)
		}
	}
	for name := range primary {
		if !slices.Contains(candidates[name], primary[name]) {
			delete(primary, name)
		}
	}
	for name, keys := range candidates {
		if _, has := primary[name]; !has {
			primary[name] = keys[0]
		}
	}
	// A node that gains a service is updated first. Each update sends peers a map. Between the two, one without any route would make a
	// peer's kernel give a new connection the source address of another interface, which it keeps: no answer would reach it.
	for _, gains := range []bool{true, false} {
		for _, node := range nodes {
			h := hosts[node.Key]
			mappings, routes := a.share(node, h, primary)
			applied := fmt.Sprint(mappings, routes)
			if applied == h.applied || (len(routes) > 0) != gains {
				continue
			}
			h.applied = applied
			log.Printf("%s: approved for %v, routes %v", node.Name, mappings, routes)
			a.update(node, mappings, routes)
		}
	}
}

// share is what a node is approved for, and its routes.
func (a *api) share(node *tailcfg.Node, h *host, primary map[string]key.NodePublic) (tailcfg.ServiceIPMappings, []netip.Prefix) {
	mappings := tailcfg.ServiceIPMappings{}
	var routes []netip.Prefix
	for _, advertised := range h.advertises {
		name := string(advertised.Name)
		service, exists := a.services[name]
		if !exists || !a.approved(name, node) {
			continue
		}
		for _, text := range service.Addrs {
			addr := netip.MustParseAddr(text)
			mappings[advertised.Name] = append(mappings[advertised.Name], addr)
			if primary[name] == node.Key {
				routes = append(routes, netip.PrefixFrom(addr, addr.BitLen()))
			}
		}
	}
	for _, route := range a.approvedRoutes(node) {
		if primary[route.String()] == node.Key {
			routes = append(routes, route)
		}
	}
	slices.SortFunc(routes, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	return mappings, routes
}

func (a *api) update(node *tailcfg.Node, mappings tailcfg.ServiceIPMappings, routes []netip.Prefix) {
	caps := tailcfg.NodeCapMap{tailcfg.CapabilityHTTPS: nil, tailcfg.NodeAttrFunnel: nil, funnelPorts: nil}
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

// approved is whether a node may serve a service: yes unless it was refused.
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

// publish gives a service its name in the DNS of every node.
func (a *api) publish(made service) {
	name := strings.TrimPrefix(made.Name, "svc:") + "." + a.tailnet.MagicDNSDomain
	a.tailnet.DNSConfig.CertDomains = append(a.tailnet.DNSConfig.CertDomains, name)
	records := []tailcfg.DNSRecord{}
	for _, addr := range made.Addrs {
		records = append(records, tailcfg.DNSRecord{Name: name, Value: addr})
	}
	a.tailnet.AddDNSRecords(records...)
}
