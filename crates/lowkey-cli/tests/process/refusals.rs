//! What is refused, and how plainly: input, clients and starts that cannot work. Each is told why, and harms nobody
//! but itself.

mod bad_bytes;
mod bad_input;
mod browsers;
mod hostile;
mod limits;
mod start_errors;
