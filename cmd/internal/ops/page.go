package ops

import (
	"embed"
	"fmt"
	"hash/crc32"
	"net/http"
)

//go:embed page
var pageFiles embed.FS

// pagePolicy lets a browser run and load what comes from here as a file, and nothing else: no
// script in the page itself, nothing from elsewhere, nobody's frame.
const pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// pageHandlers answer for the page and for what it shows.
func pageHandlers(mux *http.ServeMux, f *Feed) {
	for path, file := range map[string]struct{ name, kind string }{
		"/{$}":            {"index.html", "text/html; charset=utf-8"},
		"/page/style.css": {"style.css", "text/css; charset=utf-8"},
		"/page/page.js":   {"page.js", "text/javascript; charset=utf-8"},
		"/page/icon.svg":  {"icon.svg", "image/svg+xml"},
	} {
		text, err := pageFiles.ReadFile("page/" + file.name)
		if err != nil {
			panic(err) // it is in the binary
		}
		tag := fmt.Sprintf(`"%08x"`, crc32.ChecksumIEEE(text))
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			protect(w)
			w.Header().Set("Content-Type", file.kind)
			w.Header().Set("Cache-Control", "no-cache")
			w.Header().Set("ETag", tag)
			if r.Header.Get("If-None-Match") == tag {
				w.WriteHeader(http.StatusNotModified)
				return
			}
			_, _ = w.Write(text)
		})
	}
	mux.HandleFunc("GET /live", f.serve)
}

func protect(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Security-Policy", pagePolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
}
