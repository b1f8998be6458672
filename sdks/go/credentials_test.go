package lowkey

import (
	"os"
	"path/filepath"
	"testing"
)

func TestAFileIsReadAgainWhenItChangesAndKeptWhileItIsWrong(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	file := &watchedFile[string]{path: path, parse: parseToken}
	if _, err := file.read(); err == nil {
		t.Fatal("a file that is not there has no token")
	}
	for _, step := range []struct{ text, expect string }{
		{"one", "one"}, {"", "one"}, {"not a token", "one"}, {"three\n", "three"}, {"\x1b", "three"},
	} {
		if err := os.WriteFile(path, []byte(step.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if token, err := file.read(); err != nil || token != step.expect {
			t.Errorf("%q: %q, %v", step.text, token, err)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if token, err := file.read(); err != nil || token != "three" {
		t.Errorf("%q, %v", token, err)
	}
}
