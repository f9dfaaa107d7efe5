// SPDX-License-Identifier: Apache-2.0

package console

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strings"
	"unicode/utf16"

	"go.uber.org/zap"
)

//go:embed templates/*.html assets/*
var files embed.FS

type asset struct {
	body    []byte
	kind    string
	version string // hash of the content
}

func loadAssets() (map[string]asset, error) {
	entries, err := fs.ReadDir(files, "assets")
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	all := make(map[string]asset)
	for _, e := range entries {
		body, err := fs.ReadFile(files, "assets/"+e.Name())
		if err != nil {
			return nil, fmt.Errorf("console: %w", err)
		}
		sum := sha256.Sum256(body)
		kind := map[string]string{
			".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml",
		}[path.Ext(e.Name())]
		if kind == "" {
			kind = mime.TypeByExtension(path.Ext(e.Name()))
		}
		all[e.Name()] = asset{body, kind, base64.RawURLEncoding.EncodeToString(sum[:9])}
	}
	return all, nil
}

// serveAsset serves an asset. It requires no session.
func (s *Server) serveAsset(w http.ResponseWriter, r *http.Request) {
	a, ok := s.assets[r.PathValue("name")]
	if !ok {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", a.kind)
	w.Header().Set("Cache-Control", "no-cache")
	w.Header().Set("Etag", `"`+a.version+`"`)
	if r.URL.Query().Get("v") == a.version {
		w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	if strings.Contains(r.Header.Get("If-None-Match"), a.version) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	_, _ = w.Write(a.body)
}

func loadTemplates(all []Page, assets map[string]asset) (map[string]*template.Template, error) {
	functions := functions()
	functions["asset"] = func(name string) (string, error) {
		a, ok := assets[name]
		if !ok {
			return "", fmt.Errorf("asset not found: %s", name)
		}
		return "/assets/" + name + "?v=" + a.version, nil
	}
	base, err := template.New("base").Funcs(functions).ParseFS(files, "templates/layout.html", "templates/parts.html")
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	names := []string{"sign-in", "error"}
	for i := range all {
		names = append(names, all[i].Template)
	}
	sets := make(map[string]*template.Template)
	for _, name := range names {
		if sets[name] != nil {
			continue
		}
		set, err := base.Clone()
		if err == nil {
			set, err = set.ParseFS(files, "templates/"+name+".html")
		}
		if err != nil {
			return nil, fmt.Errorf("console: %w", err)
		}
		sets[name] = set
	}
	return sets, nil
}

// render executes a template and sends the result with the given HTTP status. If the template fails, it sends an
// error.
func (s *Server) render(w http.ResponseWriter, code int, file, name string, data any) {
	set := s.templates[file]
	if set == nil {
		s.broken(w, errors.New("template not found: "+file))
		return
	}
	var b bytes.Buffer
	if err := set.ExecuteTemplate(&b, name, data); err != nil {
		s.broken(w, err)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(code)
	_, _ = w.Write(b.Bytes())
}

func (s *Server) broken(w http.ResponseWriter, err error) {
	s.o.Logger.Error("cannot render page", zap.Error(err))
	http.Error(w, "Cannot render the page; see the log of the node.", http.StatusInternalServerError)
}

// trigger returns the value of a header that triggers an event with a text in the page.
func trigger(name, text string) string {
	raw, err := json.Marshal(map[string]map[string]string{name: {"text": text}})
	if err != nil {
		return name // unreachable: strings can always be encoded
	}
	var b strings.Builder
	for _, r := range string(raw) {
		if r < 0x80 {
			b.WriteRune(r)
			continue
		}
		for _, u := range utf16.Encode([]rune{r}) {
			fmt.Fprintf(&b, `\u%04x`, u)
		}
	}
	return b.String()
}
