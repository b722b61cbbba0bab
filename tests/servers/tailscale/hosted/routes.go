package main

import (
	"encoding/json"
	"net/http"
	"net/netip"
	"slices"

	"tailscale.com/tailcfg"
)

// deviceRoutes are the routes of a subnet router.
type deviceRoutes struct {
	Advertised []netip.Prefix `json:"advertisedRoutes"`
	Enabled    []netip.Prefix `json:"enabledRoutes"`
}

func (a *api) routesOf(node *tailcfg.Node) deviceRoutes {
	advertised, enabled := node.Hostinfo.RoutableIPs().AsSlice(), a.enabled[node.StableID]
	return deviceRoutes{Advertised: append([]netip.Prefix{}, advertised...), Enabled: append([]netip.Prefix{}, enabled...)}
}

// approveRoutes approves exactly these routes of a device, advertised or not.
func (a *api) approveRoutes(w http.ResponseWriter, r *http.Request) {
	a.withDevice(func(w http.ResponseWriter, node *tailcfg.Node) {
		var wanted struct {
			Routes []netip.Prefix `json:"routes"`
		}
		if err := json.NewDecoder(r.Body).Decode(&wanted); err != nil {
			refuse(w, http.StatusBadRequest, "invalid body")
			return
		}
		a.enabled[node.StableID] = wanted.Routes
		answer(w, a.routesOf(node))
	})(w, r)
}

// approvedRoutes are those that a node advertises and is approved for.
func (a *api) approvedRoutes(node *tailcfg.Node) []netip.Prefix {
	routes := a.routesOf(node)
	return slices.DeleteFunc(routes.Advertised, func(route netip.Prefix) bool { return !slices.Contains(routes.Enabled, route) })
}
