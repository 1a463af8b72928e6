// Dex, the OpenID Connect provider, for the test of the page behind oauth2-proxy: one client, users with passwords, storage in memory.
// Version 2.13 is the last one that the module proxy serves under this path. The program of that version requires clients of databases that
// current compilers do not compile, so this one uses its packages.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"log"
	"net/http"
	"os"
	"path/filepath"

	"github.com/dexidp/dex/server"
	"github.com/dexidp/dex/storage"
	"github.com/dexidp/dex/storage/memory"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"
)

var templates = map[string]string{
	"password.html": `<!DOCTYPE html><title>Dex</title><form method="post" action="{{ .PostURL }}">
<input name="login"><input name="password" type="password"><button id="submit-login">Log in</button></form>`,
	"approval.html": `<!DOCTYPE html><title>Dex</title>`,
	"login.html":    `<!DOCTYPE html><title>Dex</title>{{ range .Connectors }}<a href="{{ .URL }}">{{ .Name }}</a>{{ end }}`,
	"oob.html":      `<!DOCTYPE html><title>Dex</title>`,
	"error.html":    `<!DOCTYPE html><title>Dex</title><p>{{ .ErrType }}: {{ .ErrMsg }}</p>`,
}

// config is the JSON file of the test.
type config struct {
	Issuer    string
	Listen    string
	Cert, Key string
	Client    storage.Client
	Passwords []storage.Password
}

func main() {
	path := flag.String("config", "", "JSON file: Issuer, Listen, Cert, Key, Client, Passwords")
	flag.Parse()
	if err := serve(*path); err != nil {
		log.Fatal(err)
	}
}

func serve(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var config config
	if err := json.Unmarshal(text, &config); err != nil {
		return err
	}
	web, err := webFolder(filepath.Dir(path))
	if err != nil {
		return err
	}
	logger := logrus.New()
	store := storage.WithStaticPasswords(memory.New(logger), config.Passwords, logger)
	store = storage.WithStaticClients(store, []storage.Client{config.Client})
	store = storage.WithStaticConnectors(store, []storage.Connector{{ID: server.LocalConnector, Name: "Email", Type: server.LocalConnector}})
	handler, err := server.NewServer(context.Background(), server.Config{
		Issuer:             config.Issuer,
		Storage:            store,
		SkipApprovalScreen: true,
		Web:                server.WebConfig{Dir: web},
		Logger:             logger,
		PrometheusRegistry: prometheus.NewRegistry(),
	})
	if err != nil {
		return err
	}
	return http.ListenAndServeTLS(config.Listen, config.Cert, config.Key, handler)
}

// webFolder writes the templates of Dex to a folder below dir.
func webFolder(dir string) (string, error) {
	web := filepath.Join(dir, "web")
	for _, folder := range []string{"static", "templates", filepath.Join("themes", "coreos")} {
		if err := os.MkdirAll(filepath.Join(web, folder), 0o755); err != nil {
			return "", err
		}
	}
	for name, text := range templates {
		if err := os.WriteFile(filepath.Join(web, "templates", name), []byte(text), 0o644); err != nil {
			return "", err
		}
	}
	return web, nil
}
