//! Connections to URLs that strangers chose: public addresses only, checked where the connection is made.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use reqwest::{
    Url,
    dns::{Addrs, Name, Resolve, Resolving},
};

use super::Client;

/// Hosts that may be private nevertheless: exact names or addresses, or `*.` and a domain.
#[derive(Clone, Debug, Default)]
pub struct Allowed(Arc<[String]>);

impl Allowed {
    pub fn new(hosts: impl IntoIterator<Item = String>) -> Self {
        Self(hosts.into_iter().map(|host| host.to_ascii_lowercase()).collect())
    }

    fn names(&self, host: &str) -> bool {
        let host = host.to_ascii_lowercase();
        self.0.iter().any(|allowed| match allowed.strip_prefix('*') {
            Some(domain) => host.len() > domain.len() && host.ends_with(domain),
            None => *allowed == host,
        })
    }
}

/// A client that connects only to public addresses and allowed hosts. A name is resolved here and what it resolves to is
/// what is connected to; no proxy, which would resolve by itself. Addresses in a URL are not resolved: see [`check`].
pub fn client(allowed: &Allowed) -> Result<Client, reqwest::Error> {
    super::builder().no_proxy().dns_resolver(Resolver { allowed: allowed.clone() }).build().map(Client::from)
}

/// Reads a URL that a stranger chose. The error does not repeat it.
pub fn check(url: &str, allowed: &Allowed) -> Result<Url, &'static str> {
    let url = Url::parse(url).map_err(|_| "it is not a URL")?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err("it is neither http nor https");
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("it holds a user or password");
    }
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    if host.is_empty() {
        return Err("it has no host");
    }
    match host.parse::<IpAddr>() {
        Ok(address) if !is_public(address) && !allowed.names(host) => Err("its host is not a public address"),
        _ => Ok(url),
    }
}

struct Resolver {
    allowed: Allowed,
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let is_allowed = self.allowed.names(name.as_str());
        Box::pin(async move {
            let all = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let usable: Vec<SocketAddr> = all.filter(|address| is_allowed || is_public(address.ip())).collect();
            if usable.is_empty() {
                return Err("the name has no public address".into());
            }
            Ok(Box::new(usable.into_iter()) as Addrs)
        })
    }
}

/// Whether an address is on the public internet, also where an IPv4 address is wrapped in an IPv6 one.
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => is_public_v4(v4),
        IpAddr::V6(v6) => is_public_v6(v6),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let special = address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_broadcast()
        || address.is_documentation()
        || address.is_multicast();
    let shared = a == 100 && (64..128).contains(&b);
    let protocols = a == 192 && b == 0 && c == 0;
    let relay = a == 192 && b == 88 && c == 99;
    let benchmark = a == 198 && (18..20).contains(&b);
    // Azure's metadata and DNS live at a public-looking address.
    let wire_server = address == Ipv4Addr::new(168, 63, 129, 16);
    !(special || shared || protocols || relay || benchmark || wire_server || a == 0 || a >= 240)
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    if let Some(inner) = wrapped(address) {
        return is_public_v4(inner);
    }
    // Only 2000::/3 is given out; within it documentation, benchmarks, Teredo and other protocols' ranges are not.
    let [a, b, ..] = address.segments();
    let protocols = a == 0x2001 && b < 0x0200;
    let documentation = (a == 0x2001 && b == 0x0db8) || (a == 0x3fff && b < 0x1000);
    (0x2000..0x4000).contains(&a) && !protocols && !documentation
}

/// The IPv4 address within a NAT64 or 6to4 one. Mapped and compatible ones lie outside 2000::/3: they pass for none.
fn wrapped(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let of = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        Ipv4Addr::new(a, b, c, d)
    };
    match address.segments() {
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => Some(of(high, low)),
        [0x2002, high, low, ..] => Some(of(high, low)),
        _ => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    fn none() -> Allowed {
        Allowed::default()
    }

    #[test]
    fn private_addresses_are_seen_in_every_disguise() {
        for host in [
            "[::ffff:127.0.0.1]",
            "[::ffff:7f00:1]",
            "[::127.0.0.1]",
            "[64:ff9b::7f00:1]",
            "[64:ff9b:1::7f00:1]",
            "[2002:7f00:1::1]",
            "[2001:0:7f00:1::1]",
            "2130706433",
            "0x7f.1",
            "0177.0.0.1",
            "127.1",
            "0.0.0.0",
            "[::]",
            "[::1]",
            "[fe80::1]",
            "[fe80::1%25eth0]",
            "[fec0::1]",
            "[fc00::1]",
            "[ff02::1]",
            "[fd00:ec2::254]",
            "100.64.0.1",
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.169.254",
            "168.63.129.16",
            "192.0.0.8",
            "198.18.0.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
        ] {
            assert!(check(&format!("http://{host}:9102/f"), &none()).is_err(), "{host}");
        }
        for host in ["1.1.1.1", "172.32.0.1", "100.128.0.1", "[2606:4700::1111]", "[64:ff9b::101:101]", "example.com"] {
            assert!(check(&format!("https://{host}/f"), &none()).is_ok(), "{host}");
        }
    }

    #[test]
    fn only_plain_http_urls_are_taken() {
        for url in ["", "/f", "ftp://h/", "file:///etc/passwd", "http://u@h/", "http://u:p@h/", "http://", "data:,x"] {
            assert!(check(url, &none()).is_err(), "{url}");
        }
    }

    #[test]
    fn an_allowed_host_is_that_host_and_no_other() {
        let allowed = Allowed::new(["127.0.0.1".into(), "*.Internal".into(), "localhost".into()]);
        assert!(check("http://127.0.0.1:9102/f", &allowed).is_ok());
        for host in ["127.0.0.2", "[::ffff:127.0.0.1]", "10.0.0.1"] {
            assert!(check(&format!("http://{host}/"), &allowed).is_err(), "{host}");
        }
        for (name, is_named) in [
            ("a.internal", true),
            ("A.B.INTERNAL", true),
            ("internal", false),
            ("xinternal", false),
            ("a.internal.", false),
            ("localhost", true),
            ("localhost.", false),
            ("a.localhost", false),
        ] {
            assert_eq!(allowed.names(name), is_named, "{name}");
        }
    }

    #[tokio::test]
    async fn a_name_is_connected_to_only_where_it_resolves_to_a_public_address() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        for name in ["localhost", "localhost."] {
            let error = client(&none()).unwrap().get(format!("http://{name}:{port}/")).send().await.unwrap_err();
            assert!(error.is_connect(), "{error:?}");
        }
        let url = format!("http://localhost:{port}/");
        let accept = tokio::spawn(async move { listener.accept().await.map(|_| ()) });
        assert!(!accept.is_finished());
        let allowed = client(&Allowed::new(["localhost".into()])).unwrap();
        let _ = tokio::time::timeout(std::time::Duration::from_secs(5), allowed.get(url).send()).await;
        accept.await.unwrap().unwrap();
    }
}
