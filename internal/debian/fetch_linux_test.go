package debian

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMirror(t *testing.T) {
	for _, tt := range []struct{ name, file, text, want string }{
		{"as new machines have it", "sources.list.d/debian.sources", "Types: deb\n# http://old/debian\nURIs: http://near/debian\nSuites: x\n", "http://near/debian"},
		{"as old ones have it", "sources.list", "# deb http://old/debian x\ndeb [arch=amd64] https://near/debian/ bookworm main\n", "https://near/debian"},
		{"security only", "sources.list", "deb http://near/debian-security x main\n", "http://deb.debian.org/debian"},
		{"another distribution", "sources.list", "deb http://near/ubuntu x main\n", "http://deb.debian.org/debian"},
		{"a file that apt does not read", "sources.list.d/a.disabled", "deb http://near/debian x main\n", "http://deb.debian.org/debian"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.MkdirAll(filepath.Join(dir, "sources.list.d"), 0o755))
			require.NoError(t, os.WriteFile(filepath.Join(dir, tt.file), []byte(tt.text), 0o644))
			assert.Equal(t, tt.want, mirror(dir))
		})
	}
}
