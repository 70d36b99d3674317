// Package tcpload makes many TCP connections in a namespace, for tests: more than one
// process may have descriptors for.
//
// The listening end does not accept: its sockets are there, established, without a
// descriptor. The other end is in processes of this program's own file, which a TestMain
// has to let in:
//
//	func TestMain(m *testing.M) {
//		if tcpload.Child() {
//			return
//		}
//		os.Exit(m.Run())
//	}
package tcpload
