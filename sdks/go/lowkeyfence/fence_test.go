package lowkeyfence

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lowkey/internal/clustertest"
)

func TestTheSQLIsThatOfTheService(t *testing.T) {
	for name, ours := range map[string]string{"postgres.sql": postgresSQL, "sqlite.sql": sqliteSQL} {
		path := filepath.Join("..", "..", "..", "crates", "lowkey-fence", "sql", name)
		text, err := os.ReadFile(path)
		if err != nil {
			clustertest.Skip(t, path+" is not there to compare with")
		}
		if string(text) != ours {
			t.Errorf("sql/%s differs from %s: copy it", name, path)
		}
	}
}

func TestSQLComesApartIntoStatements(t *testing.T) {
	all := statements(postgresSQL)
	if strings.Join(all, "") != postgresSQL {
		t.Fatal("something is missing")
	}
	for _, one := range all {
		if strings.Count(one, "$lowkey$")%2 != 0 {
			t.Errorf("torn apart: %s", one)
		}
	}
	if len(all) < 3 {
		t.Errorf("%d statements", len(all))
	}
}

func TestWhatIsNoTokenIsNotPresented(t *testing.T) {
	for _, bad := range []Fence{
		{Resource: "a"}, {Token: 1}, {Resource: "a", Token: math.MaxInt64 + 1}, {Resource: "a\x00", Token: 1},
		{Resource: strings.Repeat("a", 513), Token: 1},
	} {
		if _, err := bad.signed(); err == nil {
			t.Errorf("%.20q %d", bad.Resource, bad.Token)
		}
	}
	if token, err := (Fence{Resource: "a", Token: math.MaxInt64}).signed(); err != nil || token != math.MaxInt64 {
		t.Errorf("%v", err)
	}
}
