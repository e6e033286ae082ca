/* Kiln: the tables of a kernel family.
 *
 * The generator writes one constexpr kiln_family for each family; a family's library exports it by a function
 * `const kiln_family* kiln_<family>_family(void)` and gives it to kiln_register_family(). They are not written by hand.
 *
 * All of it is plain constant data; every pointer in it is to static storage of the family's library and must outlive
 * the kiln_t that it was registered with. The layout belongs to KILN_FAMILY_ABI: the number rises with each change.
 *
 * Values. A call is turned into one array of int64_t, `v`, in which every expression of the recipe reads. Each
 * declaration below says which index of `v` it fills:
 *   tensor argument: v[i] data address, v[i+1] dtype, v[i+2 .. +rank] sizes, then `rank` strides; absent: all 0.
 *     The address of an empty tensor is never 0; kernels must not read or write there
 *   integer argument: v[i]; floating argument: v[i] holds the bits of the double
 *   device: v[multiprocessors_index]
 *   then the operation's choices (their values, not their indices), definitions, workspace addresses, and, for the
 *   kernel in question, the configuration's values.
 */
#ifndef KILN_FAMILY_H
#define KILN_FAMILY_H

#include "kiln/kiln.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KILN_FAMILY_ABI 7
#define KILN_MAX_VALUES 512     /* length of `v` */
#define KILN_MAX_KERNELS 32     /* of an operation, each implementation of a kernel counted */
#define KILN_MAX_PARAMETERS 64  /* of a kernel */
#define KILN_MAX_ZEROS 8        /* of a kernel */
#define KILN_MAX_BINS 16        /* of a kernel */
#define KILN_MAX_EDGES 4096     /* of a bin */
#define KILN_MAX_SPECIALIZATIONS 256 /* of a kernel */
#define KILN_MAX_DESCRIPTORS 8  /* of a kernel */
#define KILN_MAX_CALL_DESCRIPTORS 32 /* of all kernels of an operation */
#define KILN_MAX_DESCRIPTOR_RANK 5
#define KILN_NO_CONFIGURATION 255

/* An expression of the recipe. Sets *fault to 1 and returns 0 where a step overflows int64_t or divides by zero. */
typedef int64_t (*kiln_expression)(const int64_t* v, int32_t* fault);

/* Those that every call evaluates are one function, which is faster than one for each. It returns how many it got
 * through: all of them, or the number of the first that faults (and sets *fault) or, of requirements, does not hold. */
typedef int32_t (*kiln_definitions)(int64_t* v, int32_t* fault);         /* puts each value into v */
typedef int32_t (*kiln_requirements)(const int64_t* v, int32_t* fault);
typedef int32_t (*kiln_parameters)(const int64_t* v, int64_t* values, int32_t* fault); /* values[0], [1], ... */

typedef struct kiln_argument_table {
    const char* name;
    int32_t kind;     /* KILN_ARG_TENSOR, KILN_ARG_INT, KILN_ARG_FLOAT */
    int32_t rank;
    int32_t dtype;    /* of a tensor: a kiln_dtype, or -1 - c where choice c (an index) decides */
    int32_t optional;
    int32_t index;    /* in v */
    int32_t integer_bits; /* of an integer: 1 (boolean), 32 or 64 */
} kiln_argument_table;

/* FIRST_THAT_FITS: the value asked for, or the first behind it with which each kernel that the call runs has an
 * implementation that fits, and each forced key is a variant of one. At most one choice of an operation; no kernel depends
 * on it but by `when`. */
enum { KILN_MATCH_EXACT = 0, KILN_MATCH_NEXT_LARGER = 1, KILN_MATCH_FIRST_THAT_FITS = 2 };
typedef struct kiln_choice_table {
    const char* name;
    kiln_expression value;         /* what the call asks for */
    int32_t match;                 /* KILN_MATCH_* */
    int32_t count;
    const int64_t* values;         /* count; ascending for KILN_MATCH_NEXT_LARGER */
    const char* const* spellings;  /* count: "bf16", "64", "false" */
    const int32_t* served;         /* count: for the value that matches, the index of the one that the call gets: itself;
                                      or where the build has no kernels of it, one whose kernels serve in its place */
    int32_t index;                 /* in v */
    int32_t reserved;
} kiln_choice_table;

typedef struct kiln_workspace_table {
    const char* name;
    kiln_expression bytes;
    int32_t index;  /* of its address in v */
    int32_t reserved;
} kiln_workspace_table;

enum {
    KILN_PARAMETER_POINTER = 0, KILN_PARAMETER_I1 = 1, KILN_PARAMETER_I8 = 2, KILN_PARAMETER_I16 = 3,
    KILN_PARAMETER_I32 = 4, KILN_PARAMETER_I64 = 5, KILN_PARAMETER_U8 = 6, KILN_PARAMETER_U16 = 7,
    KILN_PARAMETER_U32 = 8, KILN_PARAMETER_U64 = 9, KILN_PARAMETER_FP32 = 10, KILN_PARAMETER_FP64 = 11,
    KILN_PARAMETER_DESCRIPTOR = 12
};
typedef struct kiln_parameter_table {
    const char* name;
    int32_t type;        /* KILN_PARAMETER_*; the value of FP32 and FP64 is the bits of a double, that of a DESCRIPTOR the
                            tensor's address */
    int32_t descriptor;  /* of a DESCRIPTOR: its number in the kernel's descriptors; else 0 */
} kiln_parameter_table;

/* A tensor descriptor. The runtime has the driver encode it, from the tensor that these expressions give and the box,
 * element type and swizzle that the pack states of the image. To the image it is 1 + rank + rank parameters: a
 * CUtensorMap (128 bytes, aligned to 64), the sizes (int32_t), the strides (int64_t, elements). */
typedef struct kiln_descriptor_table {
    const char* argument;        /* the name of the tensor or workspace, for sentences */
    int32_t rank;                /* 1 to KILN_MAX_DESCRIPTOR_RANK */
    int32_t dtype;               /* a kiln_dtype, or -1 - c where choice c (an index) decides */
    kiln_expression sizes[KILN_MAX_DESCRIPTOR_RANK];   /* elements, the outermost first; `rank` of them */
    kiln_expression strides[KILN_MAX_DESCRIPTOR_RANK]; /* elements */
} kiln_descriptor_table;

/* A specialisation holds if each parameter in `divisible_by_16` is a multiple of 16, each in `divisible_by_8` of 8, and
 * each in `equal_to_one` is 1 (bit i: parameter i). Parameters in `equal_to_one` are constants of the image: it does not
 * take them. */
typedef struct kiln_specialization_table {
    const char* name;
    uint64_t divisible_by_16;
    uint64_t divisible_by_8;
    uint64_t equal_to_one;
} kiln_specialization_table;

/* A bin of the look-up: the number of edges that are not above the value. */
typedef struct kiln_bin_table {
    const char* name;
    kiln_expression value;
    const int64_t* edges;  /* ascending */
    int32_t edge_count;
    int32_t reserved;
} kiln_bin_table;

typedef struct kiln_zero_table {
    kiln_expression address;
    kiln_expression bytes;
} kiln_zero_table;

/* One kernel on one target.
 * Slot of a variant in the target's pack:
 *   (functional * configuration_count + configuration) * specialization_count + specialization
 * where functional is the mixed-radix number of the kernel's choices, the first the most significant.
 * lookup[functional * bin_total + bin] is a configuration or KILN_NO_CONFIGURATION; bin is the mixed-radix number of
 * the kernel's bins, the first the most significant, radix edge_count + 1. */
typedef struct kiln_kernel_target_table {
    const char* target;
    int32_t configuration_count;
    int32_t driver;     /* of cubins: what cuDriverGetVersion() must be at least, 12080; 0: any */
    const int64_t* configurations;          /* configuration_count rows of the kernel's configuration_value_count */
    const char* const* configuration_names; /* "BLOCK_M=128 BLOCK_N=64 num_warps=4 num_stages=3" */
    const uint8_t* lookup;
    uint8_t layout[32];                     /* must equal the kernel's in the pack */
    int32_t ptx_driver; /* the same as `driver`, of PTX */
    int32_t reserved;
} kiln_kernel_target_table;

/* One implementation of a kernel. Those of one kernel stand one after another, with one `name`, `kernel` and `when`;
 * of a call the first runs that
 *   has a row for the device's target, which the driver is not too old for;
 *   serves the call;
 *   has an image for the call's functional;
 *   has descriptors that can describe the call's tensors, with this driver.
 * A kernel with one implementation has no name for it. The pack names them "<kernel>.<implementation>" or "<kernel>". */
typedef struct kiln_kernel_table {
    const char* name;
    const char* implementation;     /* "hopper"; NULL: the kernel's only one */
    kiln_expression when;           /* NULL: always; else the kernel is left out where it gives 0 */
    kiln_expression serves;         /* NULL: every call; else those for which it does not give 0 */
    const char* serves_text;        /* what `serves` says, for sentences: "k >= 64", or "k >= 64: why"; NULL with it */
    const int32_t* choices;         /* indices of the operation's choices that this kernel depends on */
    const kiln_parameter_table* parameters;
    kiln_parameters evaluate;       /* NULL: no parameters */
    const kiln_specialization_table* specializations; /* tried in order; the last always holds */
    const kiln_bin_table* bins;
    const kiln_zero_table* zeros;   /* set to zero on the stream before the kernel */
    const kiln_descriptor_table* descriptors; /* in the order of the parameters that take them, one each */
    const kiln_kernel_target_table* targets;  /* those that it is for */
    kiln_expression grid[3];
    int32_t kernel;                 /* which of the operation's kernels: 0, 1, ... */
    int32_t choice_count;
    int32_t parameter_count;
    int32_t specialization_count;
    int32_t bin_count;
    int32_t zero_count;
    int32_t descriptor_count;
    int32_t target_count;
    int32_t configuration_index;       /* in v, of the first */
    int32_t configuration_value_count;
    int32_t overlaps; /* 1: may begin before the kernel before it has ended, for whose end it waits by itself */
    int32_t reserved;
} kiln_kernel_table;

typedef struct kiln_operation_table {
    const char* name;
    kiln_expression skip_when;      /* NULL: never; non-zero: nothing to do, the call succeeds and launches nothing */
    const kiln_argument_table* arguments;
    const kiln_choice_table* choices;
    const char* const* definitions;  /* their names */
    kiln_definitions define;         /* NULL: none */
    const char* const* requirements; /* of each the sentence for a caller who does not fulfil it */
    kiln_requirements check;         /* after the definitions, before the choices; NULL: none */
    const kiln_workspace_table* workspaces;    /* one after another, each aligned to KILN_WORKSPACE_ALIGNMENT */
    const kiln_kernel_table* kernels;          /* launched in this order, of each kernel one implementation */
    int32_t argument_count;
    int32_t choice_count;
    int32_t definition_count;
    int32_t requirement_count;
    int32_t workspace_count;
    int32_t kernel_count;
    int32_t multiprocessors_index;  /* in v */
    int32_t value_count;            /* of v, at most KILN_MAX_VALUES */
} kiln_operation_table;

typedef struct kiln_pack_table {
    const char* file;          /* "nvidia-sm_90.pack" */
    const char* target;        /* "sm_90" */
    int32_t vendor;
    int32_t has_index_digest;  /* 0: built without images */
    const char* const* runs_on; /* architectures that execute its images natively, NULL-terminated: "sm_90" */
    uint8_t index_digest[32];
} kiln_pack_table;

struct kiln_family {
    uint64_t size;
    int32_t abi;               /* KILN_FAMILY_ABI */
    int32_t operation_count;
    int32_t pack_count;
    int32_t reserved;
    const char* name;
    const char* version;       /* of the release it was made for */
    const kiln_operation_table* operations;
    const kiln_pack_table* packs;
};

/* For typed entries, which have no other way to leave a sentence: does so for the calling thread, returns `status`. */
KILN_API kiln_status kiln_set_error(kiln_status status, const char* sentence);
/* Reads a structure that begins with its `size`: the bytes of *from that both sides know go to *to, which holds the
 * defaults and is `known` bytes long. `name` is the structure's name, for the sentence. KILN_E_ARGUMENT: NULL or a
 * `size` that cannot be; KILN_E_NEWER_CALLER: a non-zero byte beyond `known`. */
KILN_API kiln_status kiln_read_struct(void* to, uint64_t known, const void* from, const char* name);

#ifdef __cplusplus
}
#endif
#endif
