// Package rdmatest has the conformance tests that every provider of RDMA must pass, and benchmarks
// to compare providers. It knows the contract rdma only, and no provider. Begin reading at Run. The
// tests of a provider run one after another; what runs on a loop is in the tests' comments.
//
//	func TestDevice(t *testing.T) {
//		rdmatest.Run(t, provider) // opens two devices that reach each other
//	}
package rdmatest
