package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"strings"

	"tailscale.com/tailcfg"
)

// setTXT publishes a record that a node has set, as the real one does in the public DNS.
func setTXT(dns string, r *tailcfg.SetDNSRequest) error {
	body, err := json.Marshal(map[string]string{"host": strings.TrimSuffix(r.Name, ".") + ".", "value": r.Value})
	if err != nil {
		return err
	}
	log.Printf("set-dns %s", r.Name)
	answer, err := http.Post("http://"+dns+"/set-txt", "application/json", bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("set-txt: %s", answer.Status)
	}
	return nil
}

// setCertDomains replaces the names for which every node may have certificates: the real control server gives each
// node those of the services that it hosts.
func (a *api) setCertDomains(_ *http.Request, names []string) {
	config := *a.tailnet.DNSConfig
	config.CertDomains = names
	a.tailnet.DNSConfig = &config
	a.tailnet.AddDNSRecords() // Sends every node its map.
}
