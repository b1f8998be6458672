// Package lowkeypb has the messages and stubs of the API of lowkey, generated from its proto file by generate.sh.
//
// Programs use package lowkey. This package is for what that one does not offer.
package lowkeypb
