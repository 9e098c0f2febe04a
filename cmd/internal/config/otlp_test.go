package config

import (
	"math"
	"testing"
)

func TestOTLP(t *testing.T) {
	for _, tc := range []struct {
		o  OTLP
		ok bool
	}{
		{OTLP{}, true},
		{OTLP{Endpoint: "http://127.0.0.1:4318", Sample: 1}, true},
		{OTLP{Endpoint: "https://collector/base", Sample: 0.5, CA: "/ca.pem"}, true},
		{OTLP{Endpoint: "http://[::1]:4318", CA: "/ca.pem"}, false},
		{OTLP{Endpoint: "https://collector", CA: "ca.pem"}, false},
		{OTLP{Endpoint: "127.0.0.1:4318"}, false},
		{OTLP{Endpoint: "grpc://127.0.0.1:4317"}, false},
		{OTLP{Endpoint: "http://:4318"}, false},
		{OTLP{Endpoint: "http://a:b@collector"}, false},
		{OTLP{Endpoint: "http://collector?x=1"}, false},
		{OTLP{Sample: -0.1}, false},
		{OTLP{Sample: 1.1}, false},
		{OTLP{Sample: math.NaN()}, false},
	} {
		if err := tc.o.validate(); (err == nil) != tc.ok {
			t.Errorf("%+v: %v", tc.o, err)
		}
	}
}

// TestOTLPSources: the ratio, a number with a fraction, comes from everywhere that settings come
// from.
func TestOTLPSources(t *testing.T) {
	const file = "otlp:\n  endpoint: http://127.0.0.1:4318\n  sample: 0.5\n"
	check := func(c *Config, err error, want OTLP) {
		t.Helper()
		if err != nil || c.OTLP != want {
			t.Errorf("%+v, %v", c, err)
		}
	}
	c, err := load(t, "log_format: json\n")
	check(c, err, OTLP{Sample: defaultSample})
	c, err = load(t, file)
	check(c, err, OTLP{Endpoint: "http://127.0.0.1:4318", Sample: 0.5})
	t.Setenv("RSTORED_OTLP_SAMPLE", "0.25")
	c, err = load(t, file)
	check(c, err, OTLP{Endpoint: "http://127.0.0.1:4318", Sample: 0.25})
	c, err = load(t, file, "--otlp-sample", "1", "--otlp-endpoint", "https://collector", "--otlp-ca", "/ca.pem")
	check(c, err, OTLP{Endpoint: "https://collector", Sample: 1, CA: "/ca.pem"})
	if _, err = load(t, "otlp:\n  sample: 2\n", "--otlp-sample", "3"); err == nil {
		t.Error("three of each call are traced")
	}
}
