import CFlambeau

/// Computes programs. It has threads of its own, so one engine is enough for a process.
///
/// It is `Sendable` because any thread may call the library with the handle, and because the
/// handle is freed with the last reference.
public final class Engine: @unchecked Sendable {
  let handle: OpaquePointer

  /// Chooses an engine by flags of the `flambeau` command, such as `["--engine", "mlx"]`. Without
  /// flags it computes on all cores of the CPU. Throws an error of the kind `load`.
  public init(flags: [String] = []) throws {
    guard flb_abi_version() == UInt32(FLB_ABI_VERSION) else {
      throw FlambeauError(
        kind: .load,
        text: "the library has the binary interface \(flb_abi_version()), expected \(FLB_ABI_VERSION)")
    }
    handle = try withTexts(flags) { flags, count in try make { flb_engine_new(flags, count, $0) } }
  }

  deinit { flb_engine_free(handle) }

  /// The engine's name, such as "cpu".
  public var name: String { String(cString: flb_engine_name(handle)) }

  /// The CPU engine of all objects that are made without an engine.
  public static func shared() throws -> Engine { try sharedEngine.get() }

  private static let sharedEngine = Result { try Engine() }

  /// The library's version, such as "0.1.0".
  public static var libraryVersion: String { String(cString: flb_version()) }
}
