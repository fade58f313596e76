import java.io.FileInputStream;
import java.nio.charset.StandardCharsets;
import java.security.cert.CertificateFactory;
import java.security.cert.X509Certificate;

/** Prints the name that Kafka's DefaultKafkaPrincipalBuilder takes of each certificate file, in hex. */
public class PrincipalNames {
    public static void main(String[] files) throws Exception {
        for (String file : files) {
            try (FileInputStream in = new FileInputStream(file)) {
                X509Certificate certificate =
                        (X509Certificate) CertificateFactory.getInstance("X.509").generateCertificate(in);
                byte[] name = certificate.getSubjectX500Principal().getName().getBytes(StandardCharsets.UTF_8);
                StringBuilder hex = new StringBuilder();
                for (byte octet : name) {
                    hex.append(String.format("%02x", octet));
                }
                System.out.println(hex);
            }
        }
    }
}
