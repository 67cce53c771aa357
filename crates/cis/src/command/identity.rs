//! `cis identity show`.

use cis_engine::data_dir::DataDir;
use cis_engine::identity::{Identity, host_name};
use serde_json::json;

use super::{Failure, Outcome, Setup};

pub(super) fn show(setup: &Setup) -> Outcome {
    let Identity { did, public_key, path, .. } = own(setup, &setup.options()?.data_dir)?;
    if setup.json {
        let key_file = path.to_string_lossy();
        let told = json!({"success": true, "did": did, "name": did.name(), "public_key": public_key,
                          "key_file": key_file});
        say_json!(told);
    } else {
        say!("{did}");
        say!("public key:  {public_key}");
        say!("private key: {}", path.display());
    }
    Ok(0)
}

/// Who the node of this data directory is.
pub(super) fn own(setup: &Setup, data_dir: &DataDir) -> Result<Identity, Failure> {
    let name = setup.config.node_name.value.clone().unwrap_or_else(host_name);
    let identity = Identity::of(data_dir, &name)?;
    if identity.is_exposed {
        let path = identity.path.display();
        tell!("warning: others can read the node's key and pass for it: `chmod 600 {path}`");
    }
    Ok(identity)
}
