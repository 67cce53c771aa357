//! Which addresses a webhook may lead to: those that are on the internet for everybody, so that no address given to a
//! node makes it call its own neighbours.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Networks of IPv4 that are nobody's, everybody's, or somebody's own, with the bits that name them.
const CLOSED_V4: [(Ipv4Addr, u32); 15] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8),
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    (Ipv4Addr::new(192, 0, 2, 0), 24),
    (Ipv4Addr::new(192, 88, 99, 0), 24),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    (Ipv4Addr::new(198, 51, 100, 0), 24),
    (Ipv4Addr::new(203, 0, 113, 0), 24),
    (Ipv4Addr::new(224, 0, 0, 0), 4),
    (Ipv4Addr::new(240, 0, 0, 0), 4),
];

/// The part of IPv6 that is on the internet at all, and what of it is not: protocols of its own (Teredo among them),
/// examples, and addresses that hide one of IPv4.
const OPEN_V6: (Ipv6Addr, u32) = (Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3);
const CLOSED_V6: [(Ipv6Addr, u32); 4] = [
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23),
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20),
];

/// What a network that speaks only IPv6 reaches IPv4 by: the last 32 bits are the address that is meant.
const NAT64: (Ipv6Addr, u32) = (Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96);

/// Is it an address on the internet, for everybody?
pub(crate) fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => match embedded(address) {
            Some(meant) => is_public_v4(meant),
            None => is_in_v6(address, OPEN_V6) && !CLOSED_V6.iter().any(|net| is_in_v6(address, *net)),
        },
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let is_in = |(net, bits): &(Ipv4Addr, u32)| (address.to_bits() ^ net.to_bits()) >> (32 - bits) == 0;
    !CLOSED_V4.iter().any(is_in)
}

fn is_in_v6(address: Ipv6Addr, (net, bits): (Ipv6Addr, u32)) -> bool {
    (address.to_bits() ^ net.to_bits()) >> (128 - bits) == 0
}

/// The address of IPv4 that one of IPv6 leads to.
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let [.., a, b, c, d] = address.octets();
    let nat64 = is_in_v6(address, NAT64).then_some(Ipv4Addr::new(a, b, c, d));
    address.to_ipv4_mapped().or(nat64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(addresses: &[&str], expected: bool) -> Vec<String> {
        let found = addresses.iter().filter(|text| is_public(text.parse().unwrap()) != expected);
        found.map(ToString::to_string).collect()
    }

    /// The first and the last address of every closed network, and the public neighbours on both sides of it.
    #[test]
    fn networks_of_ipv4_end_where_they_should() {
        let closed = [
            "0.0.0.0",
            "0.255.255.255",
            "10.0.0.0",
            "10.255.255.255",
            "100.64.0.0",
            "100.127.255.255",
            "127.0.0.0",
            "127.0.0.1",
            "127.255.255.255",
            "169.254.0.0",
            "169.254.169.254",
            "169.254.255.255",
            "172.16.0.0",
            "172.31.255.255",
            "192.0.0.0",
            "192.0.0.255",
            "192.0.2.0",
            "192.0.2.255",
            "192.88.99.0",
            "192.88.99.255",
            "192.168.0.0",
            "192.168.255.255",
            "198.18.0.0",
            "198.19.255.255",
            "198.51.100.0",
            "198.51.100.255",
            "203.0.113.0",
            "203.0.113.255",
            "224.0.0.0",
            "239.255.255.255",
            "240.0.0.0",
            "255.255.255.255",
        ];
        let open = [
            "1.0.0.0",
            "1.1.1.1",
            "8.8.8.8",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "169.253.255.255",
            "169.255.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "191.255.255.255",
            "192.0.1.0",
            "192.0.3.0",
            "192.88.98.255",
            "192.88.100.0",
            "192.167.255.255",
            "192.169.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "198.51.99.255",
            "198.51.101.0",
            "203.0.112.255",
            "203.0.114.0",
            "223.255.255.255",
        ];
        assert_eq!((wrong(&closed, false), wrong(&open, true)), (vec![], vec![]));
    }

    #[test]
    fn networks_of_ipv6_end_where_they_should() {
        let closed = [
            "::",
            "::1",
            "::2",
            "::127.0.0.1",
            "::8.8.8.8",
            "100::",
            "1fff:ffff::",
            "2001::",
            "2001::1",
            "2001:1ff::",
            "2001:db8::",
            "2001:db8:ffff::1",
            "2002::",
            "2002:7f00:1::",
            "2002:808:808::",
            "3fff::",
            "3fff:fff::",
            "4000::",
            "5f00::",
            "64:ff9b:1::",
            "64:ff9b:1::808:808",
            "64:ff9b::1:0:0",
            "fc00::",
            "fd00::1",
            "fdff:ffff::",
            "fe80::1",
            "febf::",
            "fec0::1",
            "ff00::",
            "ff02::1",
            "ffff::",
        ];
        let open = [
            "2000::",
            "2001:200::",
            "2001:4860:4860::8888",
            "2001:db7:ffff::",
            "2001:db9::",
            "2003::",
            "2606:4700:4700::1111",
            "3ffe::",
            "3fff:1000::",
        ];
        assert_eq!((wrong(&closed, false), wrong(&open, true)), (vec![], vec![]));
    }

    /// Whatever is closed as an address of IPv4 is closed when IPv6 leads to it, and only that.
    #[test]
    fn an_address_within_an_address_is_judged_by_itself() {
        let sample = (0..=u8::MAX).flat_map(|a| (0..=u8::MAX).map(move |b| Ipv4Addr::new(a, b, 0, 1)));
        for v4 in
            sample.chain(["192.0.2.1", "198.51.100.1", "203.0.113.1", "8.8.8.8"].map(|t| t.parse().unwrap()))
        {
            let nat64 = Ipv6Addr::from_bits(NAT64.0.to_bits() | u128::from(v4.to_bits()));
            for v6 in [v4.to_ipv6_mapped(), nat64] {
                assert_eq!(is_public(v6.into()), is_public(v4.into()), "{v6}");
            }
        }
    }

    /// What the standard library calls closed, this does too.
    #[test]
    fn nothing_the_library_knows_as_closed_is_open() {
        for a in 0..=u8::MAX {
            for (b, d) in (0..=u8::MAX).flat_map(|b| [(b, 0), (b, 255)]) {
                let v4 = Ipv4Addr::new(a, b, 0, d);
                let known = v4.is_private()
                    || v4.is_loopback()
                    || v4.is_link_local()
                    || v4.is_broadcast()
                    || v4.is_multicast()
                    || v4.is_unspecified()
                    || v4.is_documentation();
                assert!(!(known && is_public(v4.into())), "{v4}");
            }
        }
        for head in 0..=u16::MAX {
            let v6 = Ipv6Addr::new(head, 0, 0, 0, 0, 0, 0, 1);
            let known =
                v6.is_multicast() || v6.is_loopback() || v6.is_unique_local() || v6.is_unicast_link_local();
            assert!(!(known && is_public(v6.into())), "{v6}");
        }
    }
}
