//! Places without connections: which one is free, and whose goes to the next.

use super::*;

fn places(all: usize, unauthenticated: usize, of_network: usize, of_identity: usize) -> Arc<Places> {
    Places::new(Capacity { all, unauthenticated, of_network, of_identity })
}

/// Takes a place that is free.
fn free(places: &Arc<Places>, network: Option<IpAddr>) -> Place {
    let place = places.take(network, true).ok().flatten().expect("no place is free");
    place.note_silence();
    place
}

/// Which of `held` is asked to leave for one more.
fn leaves(places: &Arc<Places>, network: Option<IpAddr>, held: &[&Place]) -> Option<usize> {
    assert!(places.take(network, true).is_ok_and(|place| place.is_none()));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    held.iter().position(|place| std::pin::pin!(place.evicted()).poll(&mut context).is_ready())
}

#[test]
fn connection_that_waited_longest_is_evicted_first() {
    let places = places(10, 3, 10, 10);
    let held = [free(&places, None), free(&places, None), free(&places, None)];
    let held: Vec<&Place> = held.iter().collect();
    assert_eq!(leaves(&places, None, &held), Some(0));
    held[0].note_request();
    assert_eq!(leaves(&places, None, &held), Some(1), "one that is being answered stays");
    held[0].note_answer();
    assert_eq!(leaves(&places, None, &held), Some(1), "one that was answered waits anew");
    held[1].authenticate("ann").unwrap();
    assert!(
        places.take(None, true).is_ok_and(|place| place.is_some()),
        "and one that authenticated has left"
    );
}

#[tokio::test]
async fn connection_that_authenticates_while_it_is_evicted_stays() {
    let places = places(10, 1, 10, 10);
    let first = free(&places, None);
    let (second, ()) = tokio::join!(places.admit(None), async { first.authenticate("ann").unwrap() });
    assert!(second.is_ok());
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(std::pin::pin!(first.evicted()).poll(&mut context).is_pending());
}

#[tokio::test(start_paused = true)]
async fn fresh_connection_is_spared_until_it_was_looked_at() {
    let places = places(10, 1, 10, 10);
    let fresh = places.take(None, true).ok().flatten().unwrap();
    let (began, looked_at) = (Instant::now(), EVICTION_PATIENCE / 2);
    let (second, spared) = tokio::join!(places.admit(None), async {
        let spared = timeout(looked_at, fresh.evicted()).await.is_err();
        fresh.note_silence();
        fresh.evicted().await;
        drop(fresh);
        spared
    });
    assert!(second.is_ok() && spared && began.elapsed() < EVICTION_PATIENCE);
    // One that is never looked at goes in the end.
    let (third, ()) = tokio::join!(places.admit(None), async {
        second.as_ref().unwrap().evicted().await;
        drop(second);
    });
    assert!(third.is_ok() && began.elapsed() >= EVICTION_PATIENCE);
}

#[tokio::test]
async fn evicted_connection_makes_room_for_the_next() {
    let places = places(10, 1, 10, 10);
    let first = free(&places, None);
    let (second, ()) = tokio::join!(places.admit(None), async {
        first.evicted().await;
        drop(first);
    });
    drop(second);
    places.wait_until_empty().await;
}

#[test]
fn identity_has_no_more_connections_than_its_share() {
    let places = places(10, 5, 10, 2);
    let held: Vec<Place> = (0..3).map(|_| free(&places, None)).collect();
    assert!(held[0].authenticate("ann").is_ok() && held[1].authenticate("ann").is_ok());
    let refused = held[2].authenticate("ann").unwrap_err();
    assert_eq!((refused.code, refused.message.as_str()), (ErrorCode::RateLimited, "`ann` has 2 connections"));
    assert!(held[0].authenticate("ann").is_ok(), "one that counts already goes on");
    assert!(held[2].authenticate("bob").is_ok(), "and another identity has its own");
    // A connection counts toward the identity that used it last.
    held[0].authenticate("bob").unwrap();
    let fourth = free(&places, None);
    assert!(fourth.authenticate("ann").is_ok());
    drop((held, fourth));
    assert!(lock(&places.taken).of_identity.is_empty());
}

#[test]
fn authenticated_connections_are_never_evicted() {
    let places = places(2, 2, 2, 2);
    let held = [free(&places, None), free(&places, None)];
    held[0].authenticate("ann").unwrap();
    assert_eq!(leaves(&places, None, &held.iter().collect::<Vec<_>>()), Some(1));
    held[1].authenticate_owner();
    assert!(places.take(None, true).is_err(), "and with no other left the next one is refused");
}

#[test]
fn network_with_many_connections_takes_places_from_itself() {
    let places = places(10, 5, 2, 10);
    let [far, near]: [Option<IpAddr>; 2] = ["192.0.2.1", "192.0.2.2"].map(|ip| ip.parse().ok());
    let held = [free(&places, near), free(&places, far), free(&places, far)];
    assert_eq!(leaves(&places, far, &held.iter().collect::<Vec<_>>()), Some(1));
    assert!(places.take(near, true).is_ok_and(|place| place.is_some()));
}

#[test]
fn long_heads_share_a_budget() {
    let places = places(10, 5, 10, 10);
    let [greedy, other] = [(); 2].map(|()| free(&places, None));
    assert!(greedy.hold_head(HEADS_MAX) && !other.hold_head(SHORT_HEAD + 1));
    assert!(other.hold_head(SHORT_HEAD), "a short one always fits");
    assert!(greedy.hold_head(0) && other.hold_head(HEADS_MAX), "a head that was read frees its bytes");
    drop(other);
    assert!(greedy.hold_head(HEADS_MAX), "and so does a connection that closes");
    drop(greedy);
    assert_eq!(places.head_bytes.load(Ordering::Relaxed), 0);
}

#[test]
fn descriptors_are_kept_back_whatever_the_limit() {
    let [small, large] =
        [1_024, 1 << 20].map(|files| (Capacity::of_network(files), Capacity::of_socket(files)));
    assert!(small.0.all + small.1.all + RESERVED_FILES <= 1_024);
    assert_eq!((small.0.unauthenticated, small.0.of_identity), (256, 384));
    assert_eq!((large.0.all, large.1.all, large.0.of_identity), (NETWORK_MAX, SOCKET_MAX, 8_192));
    let (all, socket) = share(usize::try_from(FILES_WANTED).unwrap());
    assert!(all + socket + RESERVED_FILES <= usize::try_from(FILES_WANTED).unwrap());
    assert_eq!(share(10), (PLACES_MIN, PLACES_MIN));
}
