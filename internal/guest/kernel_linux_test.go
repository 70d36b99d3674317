package guest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A kernel's tree as its packages have it: what is used of it is moved, or nothing is made.
func TestPick(t *testing.T) {
	for _, tt := range []struct {
		name    string
		without string
		err     string
	}{
		{"all there", "", ""},
		{"no kernel", "boot/vmlinuz-6.8", "0 kernels, want one"},
		{"a module is missing", "lib/modules/6.8/kernel/drivers/iommufd.ko.zst", "module iommufd.ko.zst"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tree, work := t.TempDir(), t.TempDir()
			files := []string{"boot/vmlinuz-6.8", "lib/modules/6.8/kernel/drivers/other.ko.zst"}
			for _, m := range iommufdModules() {
				files = append(files, "lib/modules/6.8/kernel/drivers/"+m+".ko.zst")
			}
			for _, f := range files {
				if f != tt.without {
					require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(tree, f)), 0o755))
					require.NoError(t, os.WriteFile(filepath.Join(tree, f), []byte(f), 0o644))
				}
			}
			dir := filepath.Join(work, "kernel")
			err := pick(tree, filepath.Join(work, "parts"), dir)
			if tt.err != "" {
				assert.ErrorContains(t, err, tt.err)
				assert.NoDirExists(t, dir)
				return
			}
			require.NoError(t, err)
			assert.FileExists(t, filepath.Join(dir, "vmlinuz"))
			got, err := os.ReadDir(filepath.Join(dir, "modules"))
			require.NoError(t, err)
			assert.Len(t, got, len(iommufdModules()))
			for _, f := range got {
				assert.Contains(t, iommufdModules(), moduleName(f.Name()))
			}
		})
	}
}
