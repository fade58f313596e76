// A real Vault in one process for the tests: its core, its HTTP API and its transit engine, with storage in
// memory and without a seal of a cloud. All else is done over the API, as operators do it.
//
//	vault-server -listen 127.0.0.1:8200 [-cert FILE -key FILE]
package main

import (
	"crypto/tls"
	"flag"
	"log"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/vault/builtin/logical/transit"
	vaulthttp "github.com/hashicorp/vault/http"
	"github.com/hashicorp/vault/internalshared/configutil"
	"github.com/hashicorp/vault/sdk/helper/consts"
	"github.com/hashicorp/vault/sdk/logical"
	"github.com/hashicorp/vault/sdk/physical/inmem"
	"github.com/hashicorp/vault/vault"
)

// transitOnly is the catalog of the engines that this server has.
type transitOnly struct{}

func (transitOnly) Contains(name string, kind consts.PluginType) bool {
	return name == "transit" && kind == consts.PluginTypeSecrets
}

func (only transitOnly) Get(name string, kind consts.PluginType) (func() (interface{}, error), bool) {
	return func() (interface{}, error) { return logical.Factory(transit.Factory), nil }, only.Contains(name, kind)
}

func (transitOnly) Keys(kind consts.PluginType) []string {
	if kind == consts.PluginTypeSecrets {
		return []string{"transit"}
	}
	return nil
}

func (only transitOnly) DeprecationStatus(name string, kind consts.PluginType) (consts.DeprecationStatus, bool) {
	return consts.Supported, only.Contains(name, kind)
}

func (transitOnly) IsBuiltinEntPlugin(string, consts.PluginType) bool { return false }

func main() {
	listen := flag.String("listen", "127.0.0.1:8200", "address and port")
	certificate := flag.String("cert", "", "PEM file of the certificate; without it plain HTTP")
	key := flag.String("key", "", "PEM file of the certificate's key")
	flag.Parse()

	logger := hclog.New(&hclog.LoggerOptions{Level: hclog.Warn, Output: os.Stderr})
	storage, err := inmem.NewInmem(nil, logger)
	if err != nil {
		log.Fatal(err)
	}
	core, err := vault.NewCore(&vault.CoreConfig{
		Physical:        storage,
		LogicalBackends: map[string]logical.Factory{"transit": transit.Factory},
		BuiltinRegistry: transitOnly{},
		DisableMlock:    true,
		Logger:          logger,
	})
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	if *certificate != "" {
		pair, err := tls.LoadX509KeyPair(*certificate, *key)
		if err != nil {
			log.Fatal(err)
		}
		listener = tls.NewListener(listener, &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12})
	}
	server := &http.Server{
		Handler: vaulthttp.Handler.Handler(&vault.HandlerProperties{
			Core:           core,
			ListenerConfig: &configutil.Listener{},
		}),
		ReadHeaderTimeout: 10 * time.Second,
	}
	log.Fatal(server.Serve(listener))
}
