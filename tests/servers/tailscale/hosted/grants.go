package main

import (
	"encoding/json"
	"fmt"
	"log"
	"net/netip"
	"slices"

	"tailscale.com/tailcfg"
)

// grantSlots is the number of rules that maps have for grants, used or not.
const grantSlots = 16

// grant is one of the tailnet policy's grants, with app capabilities alone. Sources are "*", tags, logins and host names of nodes;
// destinations are tags and host names of nodes, and Tailscale Services as svc:name. A recorder is no tag but an address: recorderAddrs.
type grant struct {
	Src []string                                     `json:"src"`
	Dst []string                                     `json:"dst"`
	App map[tailcfg.PeerCapability][]json.RawMessage `json:"app"`
}

func init() {
	tailcfg.FilterAllowAll = append(tailcfg.FilterAllowAll, make([]tailcfg.FilterRule, grantSlots)...)
}

// grant sends the grants to all nodes after a change of them, or of the nodes that they name. The real control server sends each node the
// rules of which it is a destination; a node ignores the others.
//
// testcontrol has no grants. It copies tailcfg.FilterAllowAll for each map, at any time: the number of rules is constant, so that a
// concurrent copy has either the former list or the new one.
func (a *api) grant(nodes []*tailcfg.Node) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.lab.grants) > grantSlots {
		log.Fatalf("%d grants, at most %d", len(a.lab.grants), grantSlots)
	}
	rules := make([]tailcfg.FilterRule, 1+grantSlots)
	rules[0] = tailcfg.FilterAllowAll[0]
	for i, grant := range a.lab.grants {
		rules[1+i] = a.ruleOf(grant, nodes)
	}
	if text := fmt.Sprint(rules); text != a.lab.granted {
		a.lab.granted, tailcfg.FilterAllowAll = text, rules
		a.tailnet.AddDNSRecords() // Sends every node its map.
	}
}

// ruleOf is the rule of a grant in the packet filter. One without a source or destination matches nothing.
func (a *api) ruleOf(grant grant, nodes []*tailcfg.Node) tailcfg.FilterRule {
	var sources []string
	var destinations []netip.Prefix
	for _, node := range nodes {
		if a.isNamed(node, grant.Src) {
			for _, prefix := range node.Addresses {
				sources = append(sources, prefix.Addr().String())
			}
		}
		if a.isNamed(node, grant.Dst) {
			destinations = append(destinations, node.Addresses...)
		}
	}
	for _, name := range grant.Dst {
		for _, text := range a.services[name].Addrs {
			addr := netip.MustParseAddr(text)
			destinations = append(destinations, netip.PrefixFrom(addr, addr.BitLen()))
		}
	}
	caps := tailcfg.PeerCapMap{}
	for name, values := range grant.App {
		for _, value := range values {
			caps[name] = append(caps[name], tailcfg.RawMessage(value))
		}
	}
	return tailcfg.FilterRule{SrcIPs: sources, CapGrant: []tailcfg.CapGrant{{Dsts: destinations, CapMap: caps}}}
}

// isNamed is whether a list has "*", or the node's host name, its user's login, or one of its tags.
func (a *api) isNamed(node *tailcfg.Node, names []string) bool {
	hostname := node.Hostinfo.Hostname()
	labels := append([]string{"*", hostname}, a.joined[node.Key].tags...)
	if login, isOwn := a.lab.logins[hostname]; isOwn {
		labels = []string{"*", hostname, login.LoginName}
	}
	return slices.ContainsFunc(labels, func(label string) bool { return slices.Contains(names, label) })
}
