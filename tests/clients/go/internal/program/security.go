package program

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strings"
)

// Security is how the command `login` proves who it is. Files are PEM.
type Security struct {
	Protocol    string `json:"protocol"`
	Mechanism   string `json:"mechanism"`
	User        string `json:"user"`
	Password    string `json:"password"`
	Token       string `json:"token"`
	Authority   string `json:"authority"`
	Certificate string `json:"certificate"`
	Key         string `json:"key"`
}

// LogsIn says that there is a mechanism.
func (s Security) LogsIn() bool { return strings.HasPrefix(s.Protocol, "SASL_") }

// TLS is nil without TLS.
func (s Security) TLS() (*tls.Config, error) {
	if !strings.HasSuffix(s.Protocol, "SSL") {
		return nil, nil
	}
	trusted, err := os.ReadFile(s.Authority)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	if !config.RootCAs.AppendCertsFromPEM(trusted) {
		return nil, fmt.Errorf("%s has no certificate", s.Authority)
	}
	if s.Certificate != "" {
		own, err := tls.LoadX509KeyPair(s.Certificate, s.Key)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{own}
	}
	return config, nil
}

// Values are those that `login` produces, one after another, and reads again.
func (a Arguments) Values() []string {
	var values []string
	for number := range a.Count {
		values = append(values, fmt.Sprint(number))
	}
	return values
}
